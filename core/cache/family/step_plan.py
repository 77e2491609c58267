"""StepPlan: what a cache tells the layer of bytes of one step [cache-family, 5.2]."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvactors.core.errors import InvalidStep
from kvactors.core.numbers import whole

__all__ = ["PlanOnce", "StepPlan", "check_shapes", "whole_numbers"]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Token t of a step is written in `cells[t]`; cells [0, read) are read.

    `rows[t]` says which of these it sees: bit j stands for cell j. There are none where the step is
    contiguous: `cells` are a run, the last ones that are read, and each token sees all cells up to
    its own. Then nobody needs a mask for one token, and a causal one will do for more.

    Tokens 5 and 6 of a sequence in cells 0 to 4, and token 2 of another one in cells 5 and 6:

        cells  7  8  9                    the lowest that are free
        read   10
        rows   1 1 1 1 1 . . 1 . .        token 5
               1 1 1 1 1 . . 1 1 .        token 6
               . . . . . 1 1 . . 1        token 2 of the other one
    """

    cells: Sequence[int]
    read: int
    rows: tuple[int, ...] | None = None

    @classmethod
    def run(cls, start: int, count: int) -> "StepPlan":
        """Of `count` tokens behind `start` others, all of one sequence."""
        return cls(range(start, start + count), start + count)

    @classmethod
    def of(cls, cells: Sequence[int], rows: Sequence[int]) -> "StepPlan":
        """Of tokens in these `cells` that see what `rows` say: contiguous if that is all that a
        contiguous plan would say."""
        straight = all(after == before + 1 for before, after in pairwise(cells))
        if straight and all(row == (2 << cell) - 1 for cell, row in zip(cells, rows, strict=True)):
            return cls.run(cells[0], len(cells))
        return cls(tuple(cells), max(row.bit_length() for row in rows), tuple(rows))

    @property
    def contiguous(self) -> bool:
        """Whether no mask is needed but a causal one."""
        return self.rows is None

    def row(self, token: int) -> int:
        """The cells that a token of the step sees, as bits."""
        return (2 << self.cells[token]) - 1 if self.rows is None else self.rows[token]


class PlanOnce:
    """The plan of the step under way, made for the first layer that asks, kept for the others."""

    def __init__(self) -> None:
        self._positions: tuple[int, ...] = ()
        self._plan: StepPlan | None = None

    def get(
        self, positions: Sequence[int], make: Callable[[tuple[int, ...]], StepPlan]
    ) -> StepPlan:
        """The plan of these `positions`; `make` makes it if another one, or none, is kept."""
        asked = whole_numbers("a position", positions)
        if not asked:
            raise InvalidStep("a step has at least one token")
        if self._plan is None or asked != self._positions:
            self._plan, self._positions = make(asked), asked
        return self._plan

    def forget(self) -> None:
        """It is void."""
        self._plan = None


def check_shapes(shapes: Sequence[tuple[int, ...]], tokens: int) -> None:
    """Raise InvalidStep unless the `shapes` are those of queries, keys and values of so many
    `tokens` in one batch."""
    if any(len(shape) != 4 or shape[0] != 1 or shape[2] != tokens for shape in shapes):
        raise InvalidStep(
            f"queries, keys and values are [1, heads, {tokens}, dim] where {tokens} positions are "
            f"given, all sequences in one batch: these are {shapes}"
        )
    queries, keys, values = shapes
    heads = queries[1] and keys[1] and queries[1] % keys[1] == 0
    if keys != values or not heads or queries[3] != keys[3]:
        raise InvalidStep(
            "keys and values have one shape, their heads divide those of the queries and their "
            f"dim is the same: these are {shapes}"
        )


def whole_numbers(name: str, values: Sequence[int]) -> tuple[int, ...]:
    """What should be whole numbers from 0 on; `name` says what one of them is. Raises
    InvalidStep."""
    found = tuple(whole(value) for value in values)
    for given, value in zip(values, found, strict=True):
        if value is None or value < 0:
            raise InvalidStep(f"{name} is a whole number from 0 on, not {given!r}")
    return found  # type: ignore[return-value]
