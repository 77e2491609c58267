"""Sequences over one pool of cells: they fork without a copy [cache-family, 5.2].

    seq_cp(0, 1); seq_cp(0, 2)      a trunk of four tokens, forked twice; then a token for 1, two
                                    for 2, and 0 lets go of all that it held

    cell       0    1    2    3    4    5    6
    position   0    1    2    3    4    4    5
    owners     1 2  1 2  1 2  1 2  1    2    2

A token sees a cell if its own sequence holds it at a position that is not behind its own.
"""

from collections.abc import Sequence

from kvactors.core.cache.family.cells import OwnedCells, Token
from kvactors.core.cache.family.contiguous import check_room, whole_capacity
from kvactors.core.cache.family.step_plan import PlanOnce, StepPlan, whole_numbers
from kvactors.core.errors import InvalidStep

__all__ = ["SeqBookkeeping"]


class SeqBookkeeping:
    """At most `capacity` cells of sequences, which are named by numbers from 0 on."""

    def __init__(self, capacity: int) -> None:
        self._capacity = whole_capacity(capacity)
        self._once = PlanOnce()
        self._placed: list[Token] = []
        self.clear()

    @property
    def capacity(self) -> int:
        """Cells at most."""
        return self._capacity

    @property
    def used(self) -> int:
        """Cells that somebody holds; shared ones count once."""
        return self._cells.held().bit_count()

    @property
    def high_water(self) -> int:
        """One behind the last cell that somebody holds."""
        return self._cells.held().bit_length()

    def can_extend(self, count: int = 1) -> bool:
        """Whether `count` more tokens have room now."""
        return self.used + count <= self._capacity

    def clear(self) -> None:
        """Forget all of it; no byte is touched."""
        self._cells = OwnedCells()
        self._declared: tuple[int, ...] | None = None
        self.end_step()

    # -- between steps -----------------------------------------------------------------

    def begin_step(self, sequences: Sequence[int]) -> None:
        """Whose the tokens of the next step are, one number for each. Raises InvalidStep."""
        declared = whole_numbers("a sequence", sequences)
        self.end_step()
        self._declared = declared

    def seq_cp(self, source: int, target: int, start: int = 0, end: int | None = None) -> None:
        """`target` holds the cells of `source` at positions [start, end) too. Raises InvalidStep,
        changing nothing, if `source` holds nothing, or `target` other cells there."""
        source, target = whole_numbers("a sequence", (source, target))
        _check_range(start, end)
        if not self.seq_len(source):
            raise InvalidStep(f"sequence {source} holds nothing that sequence {target} could share")
        shared, mine = self._cells.at(source, start, end), dict(self._cells.at(target))
        for position, cell in shared if mine else ():
            if mine.get(position, cell) != cell:
                raise InvalidStep(
                    f"sequence {target} already holds position {position}, in cell "
                    f"{mine[position]}, and sequence {source} in cell {cell}: seq_rm it first"
                )
        self.end_step()
        self._cells.share(target, shared)

    def seq_rm(self, sequence: int, start: int = 0, end: int | None = None) -> None:
        """`sequence` lets go of positions [start, end). One that holds nothing there stays as it
        is. Raises InvalidStep."""
        (sequence,) = whole_numbers("a sequence", (sequence,))
        _check_range(start, end)
        self.end_step()
        self._cells.let_go(sequence, start, end)

    def seq_keep(self, sequence: int) -> None:
        """All others let go of everything. Raises InvalidStep if `sequence` holds nothing."""
        (sequence,) = whole_numbers("a sequence", (sequence,))
        if not self.seq_len(sequence):
            raise InvalidStep(f"sequence {sequence} holds nothing: nothing would be kept")
        self.end_step()
        for other in self._cells.sequences:
            if other != sequence:
                self._cells.let_go(other)

    def seq_len(self, sequence: int) -> int:
        """Tokens that `sequence` holds."""
        return len(self._cells.at(sequence))

    def next_position(self, sequence: int) -> int:
        """One behind its last: more than `seq_len` where its beginning was removed."""
        held = self._cells.at(sequence)
        return held[-1][0] + 1 if held else 0

    def owners(self, cell: int) -> frozenset[int]:
        """The sequences that hold a cell."""
        return self._cells.owners(cell)

    # -- one step ----------------------------------------------------------------------

    def plan(self, positions: Sequence[int]) -> StepPlan:
        """As Planner says. Raises InvalidStep, CacheFull, changing nothing."""
        return self._once.get(positions, self._place)

    def _place(self, positions: tuple[int, ...]) -> StepPlan:
        tokens = self._checked(positions)
        check_room(len(tokens), self.used, self._capacity)
        self._declared, self._placed = None, tokens
        cells = [self._cells.take(*token) for token in tokens]
        return StepPlan.of(cells, self._cells.rows(tokens))

    def _checked(self, positions: tuple[int, ...]) -> list[Token]:
        if self._declared is None:
            raise InvalidStep("whose tokens are these? begin_step says so before each step")
        if len(self._declared) != len(positions):
            raise InvalidStep(
                f"begin_step named sequences for {len(self._declared)} tokens: the step has "
                f"{len(positions)}"
            )
        tokens = list(zip(self._declared, positions, strict=True))
        seen: set[Token] = set()
        for sequence, position in tokens:
            held = self._cells.at(sequence, position, position + 1)
            if held or (sequence, position) in seen:
                raise InvalidStep(
                    f"sequence {sequence} would hold position {position} twice: seq_rm what is "
                    "there first"
                )
            seen.add((sequence, position))
        return tokens

    def end_step(self) -> None:
        """All layers have the plan: the next one is another step's."""
        self._once.forget()
        self._placed = []

    def take_back(self) -> None:
        """The step under way failed: its tokens are not there, and are still declared."""
        placed = self._placed
        self.end_step()
        if placed:
            for sequence, position in placed:
                self._cells.let_go(sequence, position, position + 1)
            self._declared = tuple(sequence for sequence, _ in placed)

    def check(self) -> None:
        """Prove the invariants of what is held and what is free."""
        self._cells.check()
        assert self.high_water <= self._capacity, "more cells than there are"


def _check_range(start: int, end: int | None) -> None:
    """Raise InvalidStep for what is no range of positions: elsewhere -1 is the end."""
    whole_numbers("a position, or None for the end,", (start,) if end is None else (start, end))
