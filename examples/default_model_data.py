"""Training batches of the default model: conversations as padded token rows.

Step n's batch depends on the seed and n alone, so a resumed run sees the same data.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from default_model_tokenizer import build_tokenizer
from numpy.typing import NDArray

from kvactors.core.model.worlds.episodes import make_episode
from kvactors.core.model.worlds.words import SMALL_TALK
from kvactors.core.model.worlds.world import ACKNOWLEDGED, UNKNOWN, Names, make_world

__all__ = ["DRAFT_LEGS", "LEGS", "Batch", "Leg", "held_out_batch", "leg_of", "training_batch"]

Ints = NDArray[np.int32]

_tokenizer = build_tokenizer()
# "Okay." is soon learned: most of them are left out of the loss.
_ACKNOWLEDGED_SHARE = 0.25
# Answers that are right whatever was told.
_FIXED = {ACKNOWLEDGED, *SMALL_TALK.values()}


@dataclass(frozen=True)
class Leg:
    """A stretch of training steps with one mixture of data and rounding."""

    steps: int
    # (share of steps, tokens a row, fewest facts, most facts), drawn anew each step.
    rows: tuple[tuple[float, int, int, int], ...]
    tokens: int
    # Learning rate at the leg's start and end; it falls in a straight line between.
    rates: tuple[float, float]
    invented: float
    updates: float
    # Share of steps with 4-bit keys and values, and of those also rounded to bfloat16.
    q4: float
    bf16: float = 0.0
    # Share of questions about what was never told, and the weight of an answer's first
    # token: there it is decided whether to refuse.
    unknown: float = 0.17
    first: float = 1.0
    # Share of the refusals whose key was told something else.
    near: float = 0.35
    layers: int = 3
    # Bounds of the share of a row that is mostly questions.
    asked: tuple[float, float] = (0.2, 0.6)
    # Share of plain wordings: with all of them evenly drawn, recall stood still at .75.
    plain: float = 0.85


_SHORT = ((0.5, 128, 2, 6), (0.5, 192, 3, 9))
_MIDDLE = ((0.3, 128, 2, 6), (0.35, 192, 3, 9), (0.35, 384, 4, 16))
_MIXED = (
    (0.3, 192, 3, 9),
    (0.35, 384, 3, 18),
    (0.25, 768, 4, 36),
    (0.1, 1280, 4, 40),
)
_LONGER = (
    (0.25, 384, 4, 18),
    (0.3, 768, 12, 36),
    (0.45, 1152, 12, 40),
)
_ALL = (
    (0.35, 256, 4, 14),
    (0.3, 512, 8, 25),
    (0.35, 1152, 12, 40),
)
_ASKED = (0.5, 0.85)
LEGS = (
    # Recall first, on ever longer rows.
    Leg(100, ((1.0, 128, 3, 8),), 4096, (2e-3, 2e-3), 0.35, 0.0, 0.0),
    Leg(100, ((1.0, 256, 4, 14),), 6144, (2e-3, 1.8e-3), 0.35, 0.0, 0.0),
    Leg(100, ((1.0, 512, 4, 30),), 8192, (1.8e-3, 1.5e-3), 0.35, 0.0, 0.0),
    # Then refusal, with one more layer: keys that nobody mentioned, and harder ones later.
    Leg(125, _SHORT, 4096, (1.5e-3, 1.5e-3), 0.5, 0.0, 0.0, 0.0, 0.4, 4.0, 0.0, 4),
    Leg(200, _MIDDLE, 8192, (1.5e-3, 1.5e-3), 0.5, 0.02, 0.3, 0.2, 0.4, 4.0, 0.25, 4, _ASKED),
    Leg(250, _MIXED, 8192, (1.5e-3, 1.3e-3), 0.45, 0.02, 0.7, 0.3, 0.3, 3.0, 0.4, 4, _ASKED),
    # Both, until the rate is 0; longer rows last, where many facts are confused.
    Leg(550, _MIXED, 8192, (1.3e-3, 6e-4), 0.4, 0.01, 0.8, 0.4, 0.25, 1.5, 0.35, 4, _ASKED, 0.9),
    Leg(325, _LONGER, 8192, (6e-4, 0.0), 0.35, 0.01, 0.8, 0.4, 0.25, 1.5, 0.35, 4, _ASKED, 0.9),
    # And once more from a small rate, on rows as they are asked about.
    Leg(250, _ALL, 8192, (6e-4, 0.0), 0.3, 0.0, 0.8, 0.4, 0.22, 1.5, 0.4, 4, _ASKED, 0.95),
)

# The model that drafts is to say what the default model says: recall, and little of the rest.
DRAFT_LEGS = (
    Leg(150, ((1.0, 128, 3, 8),), 4096, (3e-3, 3e-3), 0.35, 0.0, 0.0, layers=2),
    Leg(150, ((1.0, 256, 4, 14),), 4096, (3e-3, 2.5e-3), 0.35, 0.0, 0.0, layers=2),
    Leg(450, _MIDDLE, 4096, (2.5e-3, 0.0), 0.3, 0.0, 0.0, layers=2, asked=_ASKED, plain=0.95),
)


@dataclass(frozen=True)
class Batch:
    """Rows of tokens, and where in the flattened rows which token must be predicted."""

    tokens: Ints
    positions: Ints
    targets: Ints
    # How much each target counts in the loss.
    weights: NDArray[np.float32]
    # Numbers the answers: which one each target belongs to.
    answers: Ints
    # For each answer, whether it is a refusal.
    refusals: NDArray[np.bool_]
    # For each token, whether it followed its predecessor before in its row.
    seen: NDArray[np.float32]
    # For each answer to a question, the position before its first token.
    questions: Ints
    told: NDArray[np.float32]
    q4: bool = False
    bf16: bool = False


@lru_cache(maxsize=200_000)
def _ids(text: str) -> tuple[int, ...]:
    return tuple(_tokenizer.encode(text, add_special_tokens=False).ids)


def _length(text: str) -> int:
    return len(_ids(text))


def leg_of(step: int, legs: tuple[Leg, ...] = LEGS) -> tuple[int, int]:
    """The index of the step's leg, and the step's number within it."""
    for index, leg in enumerate(legs):
        if step < leg.steps:
            return index, step
        step -= leg.steps
    raise ValueError(f"step lies {step} steps behind the last leg")


def training_batch(seed: int, step: int, legs: tuple[Leg, ...] = LEGS) -> Batch:
    """The batch of a step."""
    rng = np.random.default_rng((seed, step))
    leg = legs[leg_of(step, legs)[0]]
    at = int(rng.choice(len(leg.rows), p=[row[0] for row in leg.rows]))
    _, length, fewest, most = leg.rows[at]
    rows = [
        make_episode(
            rng,
            facts=int(rng.integers(fewest, most + 1)),
            tokens=length,
            count_tokens=_length,
            invented=leg.invented,
            updates=leg.updates,
            unknown=leg.unknown,
            near=leg.near,
            asked=leg.asked,
            plain=leg.plain,
        )
        for _ in range(leg.tokens // length)
    ]
    q4 = bool(rng.random() < leg.q4)
    q4_and_bf16 = (q4, q4 and bool(rng.random() < leg.bf16))
    return _batch(rows, length, rng, leg.first, *q4_and_bf16)


def held_out_batch(seed: int, names: Names, rows: int, facts: int, length: int) -> Batch:
    """Worlds told in one go, then asked about at the end: 8 facts and 3 refusals a row."""
    rng = np.random.default_rng((seed, 10**9))
    episodes = []
    for _ in range(rows):
        world = make_world(rng, facts=facts, names=names, tokens=length - 260, count_tokens=_length)
        messages = [("system", world.system)] if world.system else []
        for turn in world.turns:
            messages += [("user", turn), ("assistant", ACKNOWLEDGED)]
        for at in rng.permutation(len(world.facts))[:8]:
            fact = world.facts[int(at)]
            messages += [("user", fact.question), ("assistant", fact.answer)]
        for question in world.unknown[:3]:
            messages += [("user", question), ("assistant", UNKNOWN)]
        episodes.append(messages)
    return _batch(episodes, length, None, 1.0, True, False)


def _batch(
    rows: list[list[tuple[str, str]]],
    length: int,
    rng: np.random.Generator | None,
    first_weight: float,
    q4: bool,
    bf16: bool,
) -> Batch:
    """Lay the conversations out as rows; without `rng` no answer but "Okay." counts."""
    tokens = np.zeros((len(rows), length), np.int32)
    positions: list[int] = []
    targets: list[int] = []
    weights: list[float] = []
    answers: list[int] = []
    refusals: list[bool] = []
    questions: list[int] = []
    told: list[float] = []
    start, end = _ids("<s>")[0], _ids("<|end|>")[0]
    marks = {role: _ids(f"<|{role}|>")[0] for role in ("system", "user", "assistant")}
    for at, messages in enumerate(rows):
        row = [start]
        for role, text in messages:
            row.append(marks[role])
            said = (*_ids(text), end)
            share = _ACKNOWLEDGED_SHARE if rng is not None else 0.0
            skipped = text == ACKNOWLEDGED and (rng is None or rng.random() >= share)
            if role == "assistant" and not skipped and len(row) + len(said) <= length:
                first = at * length + len(row) - 1
                positions += range(first, first + len(said))
                targets += said
                weights += [first_weight, *[1.0] * (len(said) - 1)]
                answers += [len(refusals)] * len(said)
                if text not in _FIXED:
                    questions.append(first)
                    told.append(float(text != UNKNOWN))
                refusals.append(text == UNKNOWN)
            row += said
        tokens[at, : min(len(row), length)] = row[:length]
    return Batch(
        tokens,
        np.array(positions, np.int32),
        np.array(targets, np.int32),
        np.array(weights, np.float32),
        np.array(answers, np.int32),
        np.array(refusals, np.bool_),
        np.stack([_seen(row) for row in tokens]),
        np.array(questions, np.int32),
        np.array(told, np.float32),
        q4,
        bf16,
    )


def _seen(row: Ints) -> NDArray[np.float32]:
    pairs = row.astype(np.int64) + 65536 * np.concatenate([[0], row[:-1]])
    _, first, which = np.unique(pairs, return_index=True, return_inverse=True)
    return (first[which] < np.arange(len(row))).astype(np.float32)
