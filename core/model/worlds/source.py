"""Drawing keys, values and wordings for the recall worlds; text in, text out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from kvactors.core.model.worlds import words
from kvactors.core.model.worlds.relations import RELATIONS, Relation

__all__ = ["Draft", "Source", "answer_of", "draw_facts", "lowered"]

T = TypeVar("T")

# Plain wordings of each relation.
PLAIN = 2

_WEIGHTS = np.cumsum([relation.weight for relation in RELATIONS])
_LISTS: dict[str, tuple[str, ...]] = {
    "kin": words.KIN,
    "place": words.PLACES,
    "shop": words.SHOPS,
    "thing": words.THINGS,
    "event": words.EVENTS,
    "food": words.FOODS,
    "city": words.CITIES,
    "job": words.JOBS,
    "spot": words.SPOTS,
    "day": words.DAYS,
    "language": words.LANGUAGES,
    "game": words.GAMES,
    "painted": words.PAINTED,
    "goods": words.GOODS,
}
_TOPIC_NAMES = tuple(words.TOPICS)
_CAPITALISED = ("person", "name", "city", "day", "language", "secret")
_LOWERED = ("My ", "The ", "You ", "Your ", "What ", "We ", "Call ")


@dataclass(frozen=True)
class Draft:
    """A fact before it is worded."""

    relation: Relation
    key: str
    topic: str
    value: str

    @property
    def asked_for(self) -> tuple[str, str, str]:
        return self.relation.name, self.key, self.topic


class Source:
    """Draws keys, values and wordings by `rng`; `names`: which ones.

    `invented` is the share of pseudo-words, `plain` the share of wordings that are among the
    first PLAIN of their relation, which share their words with the answer.
    """

    def __init__(
        self, rng: np.random.Generator, names: Sequence[str], invented: float, plain: float = 0.0
    ) -> None:
        self.rng = rng
        self.names = names
        self.invented = invented
        self.plain = plain

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self.rng.integers(len(items)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def number(self, low: int, high: int) -> int:
        """An integer from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def relation(self) -> Relation:
        at = np.searchsorted(_WEIGHTS, self.rng.random() * _WEIGHTS[-1], side="right")
        return RELATIONS[int(at)]

    def pseudo_word(self, kind: str) -> str:
        """A word nobody has seen: syllables, or pieces drawn evenly so that each is trained."""
        if self.chance(0.65):
            stem = "".join(self.pick(words.OPEN_PIECES) for _ in range(self.number(1, 3)))
            word = stem + self.pick(words.LETTERS + "nrslt" if len(stem) > 2 else words.PIECES)
        else:
            word = "".join(self.pick(words.PIECES) for _ in range(self.number(1, 4)))
            if self.chance(0.1):
                at = self.number(0, len(word))
                letter = self.pick(words.ACCENTED if self.chance(0.3) else words.LETTERS)
                word = word[:at] + letter.lower() + word[at:]
        capital = kind in _CAPITALISED or self.chance(0.05)
        return word.capitalize() if capital else word

    def key(self, kind: str) -> str:
        if kind == "":
            return ""
        if self.chance(self.invented):
            word = self.pseudo_word(kind)
        else:
            word = self.pick(self.names if kind == "person" else _LISTS[kind])
        if kind in ("place", "thing", "shop") and self.chance(0.12):
            return f"{self.pick(words.ADJECTIVES)} {word}"
        return word

    def value(self, kind: str, topic: str) -> str:
        numeric = _NUMERIC.get(kind)
        if numeric is not None:
            return numeric(self)
        if kind == "secret" or self.chance(self.invented):
            word = self.pseudo_word(kind)
            if kind == "secret":
                digits = str(self.number(10, 9999)) if self.chance(0.3) else ""
                return (word if self.chance(0.6) else word.lower()) + digits
            return f"{word} {self.pseudo_word(kind)}" if self.chance(0.08) else word
        if kind == "name":
            return self.pick(self.names)
        return self.pick(words.TOPICS[topic] if kind == "topic" else _LISTS[kind])

    def draft(self, relation: Relation, key: str | None = None) -> Draft:
        topic = ""
        if relation.values == "topic":
            topic = self.pick(_TOPIC_NAMES)
            if self.chance(self.invented * 0.5):
                topic = self.pseudo_word("topic")
        value = self.value(relation.values, topic if topic in words.TOPICS else "colour")
        return Draft(relation, self.key(relation.keys) if key is None else key, topic, value)

    def wording(self, wordings: tuple[str, ...]) -> str:
        """One of the wordings; without a share of plain ones nothing more is drawn."""
        plain = self.plain > 0 and self.chance(self.plain)
        return self.pick(wordings[:PLAIN] if plain else wordings)

    def statement(self, draft: Draft) -> str:
        return self._spell(_fill(self.wording(draft.relation.says), draft))

    def question(self, draft: Draft, *, plain: bool = False) -> str:
        text = self._spell(_fill(self.wording(draft.relation.asks), draft))
        if plain or self.chance(0.8):
            return text
        if self.chance(0.5):
            return self.pick(words.ASIDES) + text[0].lower() + text[1:]
        return text.removesuffix("?") if self.chance(0.6) else text[0].lower() + text[1:]

    def _spell(self, text: str) -> str:
        if self.chance(0.3):
            return text.replace("favourite", "favorite").replace("colour", "color")
        return text

    def turn(self, statements: Sequence[str]) -> str:
        """The statements as one turn, now and then with an opening or joined by "and"."""
        said = list(statements)
        if self.chance(0.1):
            said[0] = self.pick(words.PREFIXES) + lowered(said[0])
        if len(said) > 1 and self.chance(0.12):
            said[:2] = [f"{said[0].removesuffix('.')} and {lowered(said[1])}"]
        return " ".join(said)

    def chatter(self) -> str:
        """A sentence that tells nothing but may hold the words of a key."""
        if self.chance(0.15):
            babble = [self.pick(words.COMMON) for _ in range(self.number(3, 9))]
            return " ".join(babble).capitalize() + "."
        text = self.pick(words.CHATTER)
        for kind in ("person", "kin", "place", "thing", "event", "food", "city"):
            while "{" + kind + "}" in text:
                text = text.replace("{" + kind + "}", self.key(kind), 1)
        return text

    def never_told(
        self, told: Sequence[Draft], taken: set[tuple[str, str, str]], near: float
    ) -> Draft:
        """What to ask to hear UNKNOWN: a share `near` about keys that were told otherwise, none of
        those `taken`."""
        keys = {draft.key for draft in told if draft.key}
        while True:
            known = self.pick(told) if told else None
            hard = bool(keys) and self.chance(near)
            draft = self.draft(self.relation())
            if known is not None and self.chance(0.5):
                draft = self.draft(known.relation)
            if known is not None and hard and known.key:
                others = [r for r in RELATIONS if r.keys == known.relation.keys]
                draft = self.draft(self.pick(others), known.key)
            if draft.asked_for not in taken and (hard or draft.key not in keys):
                return draft


_NUMERIC: dict[str, Callable[[Source], str]] = {
    "code": lambda s: str(s.number(10, 10 ** s.pick((3, 4, 4, 4, 5, 6)))),
    "age": lambda s: str(s.number(2, 99)),
    "time": lambda s: (
        str(s.number(1, 12)) + s.pick(("", "", "", ":30", ":15", ":45", " am", " pm", " o'clock"))
    ),
    "price": lambda s: f"{s.number(1, 999 if s.chance(0.3) else 99)} {s.pick(words.UNITS)}",
}


def _fill(wording: str, draft: Draft) -> str:
    article = "an" if draft.value[0].lower() in "aeiou" else "a"
    return wording.format(k=draft.key, t=draft.topic, v=draft.value, a=article)


def lowered(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:] if sentence.startswith(_LOWERED) else sentence


def answer_of(draft: Draft) -> str:
    return _fill(draft.relation.answer, draft)


def draw_facts(source: Source, count: int) -> list[Draft]:
    drafts: list[Draft] = []
    taken: set[tuple[str, str, str]] = set()
    while len(drafts) < count:
        # Two facts about one key are common: neighbours are what recall confuses.
        relation, key = source.relation(), None
        if drafts and source.chance(0.3):
            near = source.pick(drafts)
            if near.relation.keys:
                relation = source.pick([r for r in RELATIONS if r.keys == near.relation.keys])
                key = near.key
        draft = source.draft(relation, key)
        if draft.asked_for not in taken:
            taken.add(draft.asked_for)
            drafts.append(draft)
    return drafts
