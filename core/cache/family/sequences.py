"""Sequences over one pool of cells: they fork without a copy [cache-family, 5.2].

A cell has a position, and a set of owners: the sequences that hold it. Sets are bits of whole
numbers, so that there may be any number of sequences and a fork takes no longer than copying a
list: bit j of a sequence's `members` says that it holds cell j.

    seq_cp(0, 1); seq_cp(0, 2)      a trunk of four tokens, forked twice; then a token for 1, two
                                    for 2, and 0 lets go of all that it held

    cell       0    1    2    3    4    5    6
    position   0    1    2    3    4    4    5
    owners     1 2  1 2  1 2  1 2  1    2    2

A token sees a cell if its own sequence holds it at a position that is not behind its own.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from kvactors.core.cache.family.contiguous import check_room, whole_capacity
from kvactors.core.cache.family.step_plan import PlanOnce, StepPlan, cells_of, whole_numbers
from kvactors.core.errors import InvalidStep

__all__ = ["SeqBookkeeping"]


@dataclass(slots=True)
class _Sequence:
    """What one sequence holds: its cells, as bits in `members`, and in `at` as (position, cell), in
    the order of positions."""

    members: int = 0
    at: list[tuple[int, int]] = field(default_factory=list)

    def within(self, start: int, end: int | None) -> list[tuple[int, int]]:
        """What it holds at positions [start, end)."""
        last = len(self.at) if end is None else bisect_left(self.at, (end,))
        return self.at[bisect_left(self.at, (start,)) : last]

    def holds(self, position: int) -> bool:
        """Whether it has a cell at this position."""
        return bool(self.within(position, position + 1))


class SeqBookkeeping:
    """Cells of sequences. A sequence holds one cell at most at each position; a cell is free when
    no sequence holds it, and the lowest that is free is taken first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = whole_capacity(capacity)
        self._once = PlanOnce()
        self.clear()

    @property
    def capacity(self) -> int:
        """Cells at most."""
        return self._capacity

    @property
    def used(self) -> int:
        """Cells that somebody holds; shared ones count once."""
        return self._held().bit_count()

    @property
    def high_water(self) -> int:
        """One behind the last cell that somebody holds."""
        return self._held().bit_length()

    def can_extend(self, count: int = 1) -> bool:
        """Whether `count` more tokens have room now."""
        return self.used + count <= self._capacity

    def clear(self) -> None:
        """Forget all of it; no byte is touched."""
        self._sequences: dict[int, _Sequence] = {}
        # Cells that were freed, a heap; those from `_fresh` on were never used.
        self._freed: list[int] = []
        self._fresh = 0
        self._declared: tuple[int, ...] | None = None
        self._placed: list[tuple[int, int]] = []
        self._once.forget()

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
        if source not in self._sequences:
            raise InvalidStep(f"sequence {source} holds nothing that sequence {target} could share")
        held = self._sequences.get(target, _Sequence())
        shared = [
            one for one in self._sequences[source].within(start, end) if not _is_in(one, held)
        ]
        for position, cell in shared:
            if held.holds(position):
                raise InvalidStep(
                    f"sequence {target} already holds position {position}, in another cell than "
                    f"{cell}, that of sequence {source}: seq_rm it there first"
                )
        self.end_step()
        if shared:
            held.at = sorted(held.at + shared)
            held.members |= _bits(shared)
            self._sequences[target] = held

    def seq_rm(self, sequence: int, start: int = 0, end: int | None = None) -> None:
        """`sequence` lets go of positions [start, end). One that holds nothing there stays as it
        is."""
        (sequence,) = whole_numbers("a sequence", (sequence,))
        self.end_step()
        self._let_go(sequence, start, end)

    def seq_keep(self, sequence: int) -> None:
        """All others let go of everything. Raises InvalidStep if `sequence` holds nothing."""
        (sequence,) = whole_numbers("a sequence", (sequence,))
        if sequence not in self._sequences:
            raise InvalidStep(f"sequence {sequence} holds nothing: nothing would be kept")
        self.end_step()
        for other in self._sequences.keys() - {sequence}:
            self._let_go(other, 0, None)

    def seq_len(self, sequence: int) -> int:
        """Tokens that `sequence` holds."""
        held = self._sequences.get(sequence)
        return len(held.at) if held else 0

    def next_position(self, sequence: int) -> int:
        """One behind its last: more than `seq_len` where its beginning was removed."""
        held = self._sequences.get(sequence)
        return held.at[-1][0] + 1 if held else 0

    def owners(self, cell: int) -> frozenset[int]:
        """The sequences that hold a cell."""
        return frozenset(n for n, held in self._sequences.items() if held.members >> cell & 1)

    # -- one step ----------------------------------------------------------------------

    def plan(self, positions: Sequence[int]) -> StepPlan:
        """As Planner says. Raises InvalidStep, CacheFull, changing nothing."""
        return self._once.get(positions, self._place)

    def _place(self, positions: tuple[int, ...]) -> StepPlan:
        sequences = self._checked(positions)
        check_room(len(positions), self.used, self._capacity)
        self._declared = None
        self._placed = list(zip(sequences, positions, strict=True))
        cells = [self._take(*one) for one in self._placed]
        return StepPlan.of(cells, self._rows())

    def _checked(self, positions: tuple[int, ...]) -> tuple[int, ...]:
        sequences = self._declared
        if sequences is None:
            raise InvalidStep("whose tokens are these? begin_step says so before each step")
        if len(sequences) != len(positions):
            raise InvalidStep(
                f"begin_step named sequences for {len(sequences)} tokens: the step has "
                f"{len(positions)}"
            )
        seen = set()
        for sequence, position in zip(sequences, positions, strict=True):
            held = self._sequences.get(sequence)
            if (sequence, position) in seen or (held and held.holds(position)):
                raise InvalidStep(
                    f"sequence {sequence} would hold position {position} twice: seq_rm what is "
                    "there first"
                )
            seen.add((sequence, position))
        return sequences

    def _take(self, sequence: int, position: int) -> int:
        """The lowest free cell, for this token."""
        if self._freed:
            cell = heappop(self._freed)
        else:
            cell, self._fresh = self._fresh, self._fresh + 1
        held = self._sequences.setdefault(sequence, _Sequence())
        held.members |= 1 << cell
        insort(held.at, (position, cell))
        return cell

    def _rows(self) -> list[int]:
        """What each token that was placed sees. From the last position back: a token sees what the
        one behind it sees, but for what lies between."""
        rows = [0] * len(self._placed)
        walks: dict[int, tuple[int, int]] = {}
        for index in sorted(range(len(rows)), key=lambda i: -self._placed[i][1]):
            sequence, position = self._placed[index]
            held = self._sequences[sequence]
            seen, last = walks.get(sequence, (held.members, len(held.at)))
            end = bisect_right(held.at, position, hi=last, key=lambda one: one[0])
            seen &= ~_bits(held.at[end:last])
            rows[index], walks[sequence] = seen, (seen, end)
        return rows

    def end_step(self) -> None:
        """All layers have the plan: the next one is another step's."""
        self._once.forget()
        self._placed = []

    def take_back(self) -> None:
        """The step under way failed: its tokens are not there, and are still declared."""
        if not self._placed:
            return
        for sequence, position in self._placed:
            self._let_go(sequence, position, position + 1)
        self._declared = tuple(sequence for sequence, _ in self._placed)
        self.end_step()

    def check(self) -> None:
        """Prove the invariants of what is held and what is free."""
        positions: dict[int, int] = {}
        for held in self._sequences.values():
            assert held.at, "a sequence that holds nothing is kept"
            assert held.members == _bits(held.at), "members are not the cells that are held"
            assert len({position for position, _ in held.at}) == len(held.at), "a position twice"
            assert held.at == sorted(held.at), "positions are not in order"
            for position, cell in held.at:
                assert positions.setdefault(cell, position) == position, "two positions in a cell"
        free = set(self._freed)
        assert len(free) == len(self._freed), "a cell is free twice"
        assert free.isdisjoint(positions), "a cell that somebody holds is free"
        assert free | set(positions) == set(range(self._fresh)), "a cell was lost"
        assert self._fresh <= self._capacity, "more cells than there are"

    def _held(self, but: int | None = None) -> int:
        """Cells that somebody holds, as bits; `but` one sequence."""
        bits = 0
        for sequence, held in self._sequences.items():
            if sequence != but:
                bits |= held.members
        return bits

    def _let_go(self, sequence: int, start: int, end: int | None) -> None:
        held = self._sequences.get(sequence)
        if held is None:
            return
        gone = held.within(start, end)
        bits = _bits(gone)
        for cell in cells_of(bits & ~self._held(but=sequence)):
            heappush(self._freed, cell)
        first = bisect_left(held.at, (start,))
        del held.at[first : first + len(gone)]
        held.members &= ~bits
        if not held.at:
            del self._sequences[sequence]


def _bits(some: Sequence[tuple[int, int]]) -> int:
    bits = bytearray(max((cell for _, cell in some), default=0) // 8 + 1)
    for _, cell in some:
        bits[cell // 8] |= 1 << cell % 8
    return int.from_bytes(bits, "little")


def _is_in(one: tuple[int, int], held: _Sequence) -> bool:
    return bool(held.members >> one[1] & 1)
