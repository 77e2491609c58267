"""Rows that are attended together, and the same rows alone."""

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx
import numpy as np
from hypothesis import strategies as st

from kvactors.core.arena.arena import Arena
from kvactors.core.arena.pieces import Piece
from kvactors.core.attention.policy import AttentionPolicy
from kvactors.core.model.load import LoadedModel

__all__ = ["BEGINNING", "OPERATIONS", "Apart", "Company", "Noting"]


@dataclass(frozen=True)
class Noting(AttentionPolicy):
    """Notes (rows, shared tokens) whenever rows are to be attended together."""

    calls: ClassVar[list[tuple[int, int]]] = []

    def together(self, rows: int, repeats: int, shared: int, *, apart: bool = False) -> bool:
        chosen = super().together(rows, repeats, shared, apart=apart)
        if chosen:
            self.calls.append((rows, shared))
        return chosen


class Apart(AttentionPolicy):
    """Attends each row by itself."""

    def together(self, rows: int, repeats: int, shared: int, *, apart: bool = False) -> bool:
        return False


BEGINNING = np.random.default_rng(0).integers(1, 128, 200).tolist()


class Company:
    """Rows in one arena, and each of them alone in another; every step compares their logits."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.arena = self.new_arena()
        self.alone: list[Arena] = []
        self.tokens = iter(np.random.default_rng(2).integers(1, 128, 10_000).tolist())
        self.pieces = [self.make_beginning(tokens) for tokens in (BEGINNING, BEGINNING[::-1])]

    def new_arena(self) -> Arena:
        return Arena(self.loaded.spec, self.loaded.policy)

    def make_beginning(self, tokens: list[int]) -> list[Piece]:
        arena = self.new_arena()
        arena.add_row(0, len(tokens))
        arena.forward(self.loaded.model, mx.array([tokens]))
        return [arena.export(0, 0, 128), arena.export(0, 128, len(tokens))]

    def join(self, kind: int, own: int) -> None:
        """A row with one of the beginnings, or none, and tokens of its own after it."""
        pieces = self.pieces[kind] if kind < len(self.pieces) else []
        length = pieces[-1].end if pieces else 0
        alone = self.new_arena()
        alone.add_row(length, length + own)
        for piece in pieces:
            alone.load(0, piece)
        new = [next(self.tokens) for _ in range(own)]
        alone.forward(self.loaded.model, mx.array([new]))
        self.alone.insert(self.arena.take(alone, 0), alone)

    def leave(self, row: int) -> None:
        moved = self.arena.leave(row)
        self.alone[row] = self.alone[moved]
        del self.alone[moved]

    def step_together(self) -> tuple[list[int], mx.array]:
        """Tokens that a step fed, and its logits."""
        fed = [next(self.tokens) for _ in self.alone]
        together = self.arena.forward(self.loaded.model, mx.array(fed)[:, None])
        self.arena.table.check()
        return fed, together

    def step(self) -> bool:
        """Whether a step of all rows gives each the logits that it gets alone, to the bit."""
        fed, together = self.step_together()
        return all(
            bool(
                mx.array_equal(together[row], arena.forward(self.loaded.model, mx.array([[t]]))[0])
            )
            for row, (arena, t) in enumerate(zip(self.alone, fed, strict=True))
        )


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, 2), st.integers(1, 90)),
        st.tuples(st.just("leave"), st.integers(0, 99), st.just(0)),
        st.tuples(st.just("step"), st.just(0), st.just(0)),
    ),
    max_size=12,
)
