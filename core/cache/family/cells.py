"""Cells with a position and a set of owners: the sequences that hold them [cache-family, 5.2].

Sets are bits of whole numbers: bit j of a sequence's `members` says that it holds cell j. So there
may be any number of sequences, and a fork takes no longer than copying a list.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

__all__ = ["OwnedCells", "Token", "cells_of"]

Token = tuple[int, int]
"""A sequence and a position."""


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


class OwnedCells:
    """Which sequence holds which cells. It holds one cell at most at each position; a cell is free
    when no sequence holds it, and the lowest that is free is taken first."""

    def __init__(self) -> None:
        self._sequences: dict[int, _Sequence] = {}
        # Cells that were freed, a heap; those from `_fresh` on were never used.
        self._freed: list[int] = []
        self._fresh = 0

    def held(self, but: int | None = None) -> int:
        """Cells that some sequence holds, as bits; `but` one sequence."""
        bits = 0
        for sequence, held in self._sequences.items():
            if sequence != but:
                bits |= held.members
        return bits

    @property
    def sequences(self) -> list[int]:
        """Those that hold something."""
        return list(self._sequences)

    def at(self, sequence: int, start: int = 0, end: int | None = None) -> list[tuple[int, int]]:
        """(position, cell) of what `sequence` holds at positions [start, end), in order."""
        held = self._sequences.get(sequence)
        return held.within(start, end) if held else []

    def owners(self, cell: int) -> frozenset[int]:
        """The sequences that hold a cell."""
        return frozenset(n for n, held in self._sequences.items() if held.members >> cell & 1)

    def take(self, sequence: int, position: int) -> int:
        """The lowest free cell is for this token from now on."""
        if self._freed:
            cell = heappop(self._freed)
        else:
            cell, self._fresh = self._fresh, self._fresh + 1
        held = self._sequences.setdefault(sequence, _Sequence())
        held.members |= 1 << cell
        insort(held.at, (position, cell))
        return cell

    def share(self, sequence: int, some: Sequence[tuple[int, int]]) -> None:
        """`sequence` holds these cells, (position, cell), of others too."""
        if some:
            held = self._sequences.setdefault(sequence, _Sequence())
            held.at = sorted({*held.at, *some}) if held.at else list(some)
            held.members |= _bits(some)

    def let_go(self, sequence: int, start: int = 0, end: int | None = None) -> None:
        """`sequence` holds nothing at positions [start, end); what nobody holds is free."""
        gone = self.at(sequence, start, end)
        if not gone:
            return
        held, bits = self._sequences[sequence], _bits(gone)
        for cell in cells_of(bits & ~self.held(but=sequence)):
            heappush(self._freed, cell)
        first = bisect_left(held.at, (start,))
        del held.at[first : first + len(gone)]
        held.members &= ~bits
        if not held.at:
            del self._sequences[sequence]

    def rows(self, tokens: Sequence[Token]) -> list[int]:
        """The cells that each of these tokens sees, as bits: those that its sequence holds, at no
        position behind its own. From the last position back, since a token sees what the one
        behind it sees, but for what lies between."""
        rows = [0] * len(tokens)
        walks: dict[int, tuple[int, int]] = {}
        for index in sorted(range(len(tokens)), key=lambda i: -tokens[i][1]):
            sequence, position = tokens[index]
            held = self._sequences[sequence]
            seen, last = walks.get(sequence, (held.members, len(held.at)))
            end = bisect_right(held.at, position, hi=last, key=lambda one: one[0])
            seen &= ~_bits(held.at[end:last])
            rows[index], walks[sequence] = seen, (seen, end)
        return rows

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


def cells_of(bits: int) -> list[int]:
    """The numbers of the bits that are set, ascending."""
    cells = []
    while bits:
        lowest = bits & -bits
        cells.append(lowest.bit_length() - 1)
        bits ^= lowest
    return cells


def _bits(some: Iterable[tuple[int, int]]) -> int:
    cells = [cell for _, cell in some]
    bits = bytearray(max(cells, default=0) // 8 + 1)
    for cell in cells:
        bits[cell // 8] |= 1 << cell % 8
    return int.from_bytes(bits, "little")
