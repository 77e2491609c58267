"""SlotTable: which row of a batch lives where in the slot arena. Integers only, no tensors.

Rows are left-aligned: row r holds its own tokens at [0, length_r) of its slot. They live in
a few slabs; the order of the batch is slab by slab, slot by slot. Three rows of 5, 900 and
7 tokens in two slabs:

    slab 0  capacity 256   slot 0: [0, 5)     batch row 0
                           slot 1: [0, 7)     batch row 1
    slab 1  capacity 1024  slot 0: [0, 900)   batch row 2

Plan, then apply: `plan_*` methods change nothing and say what to do with the bytes, so
that every layer can do it before `commit_*` makes it true.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["EXTENT_STEP", "SlotTable", "grown_capacity"]

# Key extents are multiples of this: the sums over keys then have the same order for a row
# in whichever batch it stands, so that exactness does not depend on the neighbours.
EXTENT_STEP = 64
_FIRST_CAPACITY = 256
_DOUBLE_UNTIL = 2048
_STEP = 1024


def grown_capacity(current: int, needed: int) -> int:
    """Tokens to allocate for `needed`: doubles to 2,048, then grows by 1,024 or 1.25x."""
    capacity = max(current, _FIRST_CAPACITY)
    while capacity < needed:
        if capacity < _DOUBLE_UNTIL:
            capacity *= 2
        else:
            grown = max(capacity + _STEP, capacity * 5 // 4)
            capacity = -(-grown // _FIRST_CAPACITY) * _FIRST_CAPACITY
    return capacity


@dataclass(slots=True)
class Slab:
    """One rectangle of slots x capacity tokens; `lengths[i]` tokens stand in slot i."""

    capacity: int
    lengths: list[int] = field(default_factory=list)


class SlotTable:
    """Bookkeeping of the arena: slabs, slots and lengths.

    `launch_tokens` is the cost of one more slab, expressed in tokens of padding read: the
    two sides of the trade that decides where a row goes.
    """

    def __init__(
        self, max_slabs: int = 3, launch_tokens: int = 1024, extent_step: int = EXTENT_STEP
    ) -> None:
        assert max_slabs >= 1
        self.max_slabs = max_slabs
        self.launch_tokens = launch_tokens
        self.extent_step = extent_step
        self.lean = False
        self.slabs: list[Slab] = []

    def __len__(self) -> int:
        return sum(len(slab.lengths) for slab in self.slabs)

    @property
    def lengths(self) -> list[int]:
        """Committed tokens of each row, in the order of the batch."""
        return [length for slab in self.slabs for length in slab.lengths]

    def extent(self, tokens: int) -> int:
        """`tokens` rounded up to a key extent."""
        return -(-tokens // self.extent_step) * self.extent_step

    def capacity_for(self, current: int, tokens: int) -> int:
        """Capacity of a slab of `current` that must hold `tokens` per slot."""
        if tokens <= current:
            return current
        if self.lean:
            return self.extent(tokens)
        return grown_capacity(current, tokens)

    def locate(self, row: int) -> tuple[int, int]:
        """(slab, slot) of a batch row."""
        assert 0 <= row < len(self), f"row {row} of {len(self)}"
        for index, slab in enumerate(self.slabs):
            if row < len(slab.lengths):
                return index, row
            row -= len(slab.lengths)
        raise AssertionError("unreachable")

    def first_row(self, slab: int) -> int:
        """Batch row of the slab's first slot."""
        return sum(len(s.lengths) for s in self.slabs[:slab])

    def choose_slab(self, length: int, *, last: bool = False) -> int:
        """The slab that a row of `length` should join; `len(slabs)` means a new one.

        Least padding read plus launches. `last` allows only what keeps the row at the
        end of the batch, as mlx-lm's `extend` promises.
        """
        fresh = len(self.slabs)
        first = max(0, fresh - 1) if last else 0
        costs: list[tuple[int, int]] = [
            (self._join_cost(index, length), index) for index in range(first, fresh)
        ]
        if fresh < self.max_slabs or not costs:
            costs.append((length + self.launch_tokens, fresh))
        return min(costs)[1]

    def commit_join(self, slab: int, length: int, capacity: int) -> int:
        """Add a row at the end of a slab; returns its batch row."""
        assert length <= capacity
        if slab == len(self.slabs):
            self.slabs.append(Slab(capacity))
        self.slabs[slab].capacity = capacity
        self.slabs[slab].lengths.append(length)
        return self.first_row(slab) + len(self.slabs[slab].lengths) - 1

    def commit_leave(self, row: int) -> None:
        """Remove a row; the slab's last row has moved into the hole."""
        index, slot = self.locate(row)
        lengths = self.slabs[index].lengths
        lengths[slot] = lengths[-1]
        lengths.pop()
        if not lengths:
            del self.slabs[index]

    def plan_filter(self, keep: Sequence[int]) -> list[list[int]]:
        """For each slab the slots to keep, in their new order.

        `keep` lists batch rows; rows of one slab must stay together and slabs in order.
        """
        slots: list[list[int]] = [[] for _ in self.slabs]
        previous = 0
        for row in keep:
            index, slot = self.locate(row)
            assert index >= previous, "filter must keep the order of the slabs"
            slots[index].append(slot)
            previous = index
        return slots

    def commit_filter(self, slots: Sequence[Sequence[int]]) -> None:
        """Make a planned filter true; empty slabs vanish."""
        for slab, kept in zip(self.slabs, slots, strict=True):
            slab.lengths = [slab.lengths[slot] for slot in kept]
        self.slabs = [slab for slab in self.slabs if slab.lengths]

    def advance(self, tokens: int) -> None:
        """Commit `tokens` more in every row."""
        for slab in self.slabs:
            assert all(length + tokens <= slab.capacity for length in slab.lengths)
            slab.lengths = [length + tokens for length in slab.lengths]

    def set_length(self, row: int, length: int) -> None:
        """Cut a row to `length` tokens; moves no bytes (seed 002: rewind)."""
        index, slot = self.locate(row)
        assert 0 <= length <= self.slabs[index].lengths[slot], "a cut cannot grow a row"
        self.slabs[index].lengths[slot] = length

    def check(self) -> None:
        """Prove the invariants: no empty slab, no row beyond its slab's capacity."""
        assert all(slab.lengths for slab in self.slabs), "an empty slab"
        assert len(self.slabs) <= self.max_slabs, "too many slabs"
        for slab in self.slabs:
            assert all(0 <= length <= slab.capacity for length in slab.lengths)

    def _join_cost(self, index: int, length: int) -> int:
        """Padding tokens read more per step if a row of `length` joins this slab."""
        lengths = self.slabs[index].lengths
        longest = max(lengths)
        return max(longest, length) + max(0, length - longest) * len(lengths)
