"""Small worlds of facts: what is told, what is asked, and the one right answer.

Plain text, without any model or array library: the same seed gives the same world on every
machine.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvactors.core.model.worlds import words
from kvactors.core.model.worlds.source import Source, answer_of, draw_facts

__all__ = ["ACKNOWLEDGED", "UNKNOWN", "Fact", "Names", "World", "make_world"]

Names = Literal["seen", "unseen", "invented"]

UNKNOWN = "I do not know."
ACKNOWLEDGED = "Okay."
# What the template adds to a told turn: two role marks, two ends and "Okay.".
TURN_OVERHEAD = 7
# Share of the unknown questions whose key was told something else.
NEAR = 0.35


@dataclass(frozen=True)
class Fact:
    """A told fact, a question about it, and the sentence that answers it."""

    statement: str
    question: str
    # The canonical sentence; it contains the value.
    answer: str
    value: str


@dataclass(frozen=True)
class World:
    """What is told, turn by turn, and what can be asked afterwards."""

    system: str | None
    # Told by the user; the right reply to each is ACKNOWLEDGED.
    turns: tuple[str, ...]
    facts: tuple[Fact, ...]
    # Questions about what was never told; the right reply to each is UNKNOWN.
    unknown: tuple[str, ...]


def make_world(
    rng: np.random.Generator,
    *,
    facts: int,
    names: Names,
    tokens: int | None = None,
    count_tokens: Callable[[str], int] | None = None,
) -> World:
    """Draw a world of `facts` facts, told in turns of 1 to 5, by `rng`.

    With `tokens` and `count_tokens`, turns of chatter are put between until the told part
    is about that long. "seen" names were in the default model's training, "unseen" never;
    "invented" makes keys and values pseudo-words (numbers stay numbers). Wordings are plain:
    each relation's first ones.
    """
    listed = words.UNSEEN_NAMES if names == "unseen" else words.NAMES
    source = Source(rng, listed, 1.0 if names == "invented" else 0.0, plain=1.0)
    drafts = draw_facts(source, facts)
    told = [(source.statement(draft), draft) for draft in drafts]
    turns: list[str] = []
    at = 0
    while at < len(told):
        size = source.number(1, 5)
        turns.append(" ".join(said for said, _ in told[at : at + size]))
        at += size
    if tokens is not None and count_tokens is not None:
        length = sum(count_tokens(turn) + TURN_OVERHEAD for turn in turns)
        while length < tokens:
            chat = " ".join(source.chatter() for _ in range(source.number(1, 3)))
            turns.insert(source.number(0, len(turns)), chat)
            length += count_tokens(chat) + TURN_OVERHEAD
    taken = {draft.asked_for for draft in drafts}
    unknown = [source.never_told(drafts, taken, NEAR) for _ in range(max(4, facts // 2))]
    return World(
        system=source.pick((None, *words.SYSTEMS)),
        turns=tuple(turns),
        facts=tuple(
            Fact(said, source.question(draft, plain=True), answer_of(draft), draft.value)
            for said, draft in told
        ),
        unknown=tuple(source.question(draft, plain=True) for draft in unknown),
    )
