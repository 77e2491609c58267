"""Whole conversations, answers included, to train the default model on."""

from collections.abc import Callable

import numpy as np

from kvactors.core.model.worlds import words
from kvactors.core.model.worlds.source import Draft, Source, answer_of, draw_facts, lowered
from kvactors.core.model.worlds.world import ACKNOWLEDGED, UNKNOWN

__all__ = ["make_episode"]

Message = tuple[str, str]


def make_episode(
    rng: np.random.Generator,
    *,
    facts: int,
    tokens: int,
    count_tokens: Callable[[str], int],
    invented: float,
    updates: float = 0.0,
    unknown: float = 0.17,
    near: float = 0.35,
    asked: tuple[float, float] = (0.2, 0.6),
    plain: float = 0.0,
) -> list[Message]:
    """Draw a whole conversation, as (role, text), of at most `tokens` tokens (as `count_tokens`
    counts), by `rng`.

    `invented` is the share of pseudo-words, `updates` the share of facts told again with
    another value, after which the later one holds, `unknown` the share of questions about
    what was never told, `near` the share of those whose key was told something else,
    `asked` the bounds of the share of tokens at the end that are mostly questions, and
    `plain` the share of plain wordings.
    """
    source = Source(rng, words.NAMES, invented, plain)
    episode = _Episode(source, draw_facts(source, facts), updates, (unknown, near))
    messages: list[Message] = []
    system = episode.system()
    length = 1
    if system:
        messages.append(("system", system))
        length += count_tokens(system) + 2
    # The last part is mostly questions, so that some are far from what they ask for.
    tail = tokens * (1.0 - source.rng.uniform(*asked))
    ask, chat = source.pick((0.0, 0.2, 0.4)), source.pick((0.0, 0.15, 0.4, 0.6))
    while True:
        asking = 0.85 if length > tail else ask
        user, reply = episode.exchange(asking, chat)
        length += count_tokens(user) + count_tokens(reply) + 4
        if length > tokens:
            return messages
        messages += [("user", user), ("assistant", reply)]


class _Episode:
    """The running state of a training conversation: what is told, asked and still to tell."""

    def __init__(
        self,
        source: Source,
        pending: list[Draft],
        updates: float,
        unknown: tuple[float, float],
    ) -> None:
        self.source = source
        self.pending = pending[::-1]
        self.updates = updates
        self.unknown, self.near = unknown
        self.told: dict[tuple[str, str, str], Draft] = {}
        self.unasked: list[tuple[str, str, str]] = []

    def system(self) -> str | None:
        if self.source.chance(0.35):
            return None
        text = self.source.pick(words.SYSTEMS)
        if self.source.chance(0.25):
            facts = self.source.turn([self._next() for _ in range(self.source.number(1, 4))])
            return f"{text} {facts}" if self.source.chance(0.7) else facts
        return text

    def exchange(self, asking: float, chat: float) -> Message:
        """The next user text and its right reply."""
        source = self.source
        if source.chance(0.02):
            said = source.pick(tuple(words.SMALL_TALK))
            return said, words.SMALL_TALK[said]
        # Questions before anything was told are rare, and none can be answered.
        if source.chance(asking if self.told else 0.06):
            return self._question()
        if self.pending and not source.chance(chat):
            size = min(source.number(1, 5), len(self.pending))
            return source.turn([self._next() for _ in range(size)]), ACKNOWLEDGED
        if not self.pending and not source.chance(chat + 0.3):
            return self._question()
        chatter = [source.chatter() for _ in range(source.number(1, 3))]
        return " ".join(chatter), ACKNOWLEDGED

    def _next(self) -> str:
        """State the next fact, or an update of an old one."""
        source, prefix = self.source, ""
        if self.told and (source.chance(self.updates) or not self.pending):
            old = source.pick(list(self.told.values()))
            value = source.value(
                old.relation.values, old.topic if old.topic in words.TOPICS else "colour"
            )
            draft = Draft(old.relation, old.key, old.topic, value)
            prefix = source.pick(words.CORRECTIONS)
        else:
            draft = self.pending.pop()
        self.told[draft.asked_for] = draft
        self.unasked.append(draft.asked_for)
        said = source.statement(draft)
        return prefix + (lowered(said) if prefix.endswith(", ") else said)

    def _question(self) -> Message:
        source = self.source
        if not self.told or source.chance(self.unknown):
            draft = source.never_told(list(self.told.values()), set(self.told), self.near)
            return source.question(draft), UNKNOWN
        if self.unasked and source.chance(0.75):
            asked = self.unasked.pop(source.number(0, len(self.unasked) - 1))
        else:
            asked = source.pick(list(self.told))
        draft = self.told[asked]
        return source.question(draft), answer_of(draft)
