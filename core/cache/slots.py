"""SlotTable: which row of a batch lives where in the slot arena. Integers only, no tensors
[cache-family, 4.2].

Rows are left-aligned: row r holds its own tokens at [0, length_r) of its slot. They live in
a few slabs; the order of the batch is slab by slab, slot by slot. Three rows of 5, 900 and
7 tokens in two slabs:

    slab 0  capacity 256   slot 0: [0, 5)     batch row 0
                           slot 1: [0, 7)     batch row 1
    slab 1  capacity 1024  slot 0: [0, 900)   batch row 2

A row remembers which immutable pieces it begins with. Rows of a slab that all begin with the
same ones can be attended with a single read of those tokens; the first slot stands for all.

A slab may have a trunk: pieces that all its rows begin with and read where they are. Only what
follows stands in cells of their own; lengths and positions stay those of the whole row. Two forks
of an agent of 1,000 tokens that have said 20 and 35 more:

    slab 2  trunk [0, 1000)  capacity 64   slot 0: [1000, 1020)   slot 1: [1000, 1035)

Plan, then apply: `plan_*` methods change nothing and say what to do with the bytes, so
that every layer can do it before `commit_*` makes it true.
"""

from collections.abc import Sequence

from kvactors.core.cache.slabs import (
    NO_TRUNK,
    Row,
    SharedPieces,
    Slab,
    Trunk,
    piece_end,
)

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


class SlotTable:
    """Bookkeeping of the arena: slabs, slots and lengths.

    `launch_tokens` is the cost of one more slab, expressed in tokens of padding read: the
    two sides of the trade that decides where a row goes. There are at most `max_slabs`, and as many
    that have a trunk; extents are multiples of `extent_step`.
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
        return sum(len(slab.rows) for slab in self.slabs)

    @property
    def lengths(self) -> list[int]:
        """Committed tokens of each row, in the order of the batch."""
        return [row.length for slab in self.slabs for row in slab.rows]

    def extent(self, tokens: int) -> int:
        """`tokens` rounded up to a key extent."""
        return -(-tokens // self.extent_step) * self.extent_step

    def capacity_for(self, current: int, tokens: int, base: int = 0) -> int:
        """Capacity of a slab of `current` that must hold `tokens` per slot, the first `base` of
        which its trunk has."""
        # What is read ends at an extent of the whole row, wherever its trunk ends.
        needed = self.extent(max(tokens, base + 1)) - base if base else tokens
        if needed <= current:
            return current
        if base:
            # Many rows have as much room, and little that would be copied: an eighth is spare.
            spare = needed // 8 // self.extent_step * self.extent_step
            return needed if self.lean else needed + spare
        return self.extent(needed) if self.lean else grown_capacity(current, needed)

    def locate(self, row: int) -> tuple[int, int]:
        """(slab, slot) of a batch row."""
        assert 0 <= row < len(self), f"row {row} of {len(self)}"
        for index, slab in enumerate(self.slabs):
            if row < len(slab.rows):
                return index, row
            row -= len(slab.rows)
        raise AssertionError("unreachable")

    def first_row(self, slab: int) -> int:
        """Batch row of the slab's first slot."""
        return sum(len(s.rows) for s in self.slabs[:slab])

    def shared_pieces(self, row: int) -> SharedPieces:
        """The pieces that a row is known to begin with."""
        slab, slot = self.locate(row)
        return self.slabs[slab].rows[slot].pieces

    def note(self, row: int, name: int, start: int, end: int) -> None:
        """A row's tokens [start, end) are the piece `name`; kept if it follows on the others and
        the row holds all of it."""
        slab, slot = self.locate(row)
        found = self.slabs[slab].rows[slot]
        if start == piece_end(found.pieces) and end <= found.length:
            found.pieces = (*found.pieces, (name, end))

    def shared(self, slab: int) -> int:
        """Tokens that all rows of a slab begin with, if it pays to read them once; those of its
        trunk in any case."""
        return self.slabs[slab].shared(self.launch_tokens)

    def trunk_in(self, slab: int, trunk: Trunk) -> Trunk:
        """The trunk of a `slab`; of a new one that given, if there may be one more of them."""
        if slab < len(self.slabs):
            return self.slabs[slab].trunk
        return trunk if trunk.end and _alike(self.slabs, trunk) < self.max_slabs else NO_TRUNK

    def choose_slab(
        self,
        length: int,
        pieces: SharedPieces = (),
        trunk: Trunk = NO_TRUNK,
        *,
        last: bool = False,
    ) -> int:
        """The slab that a row of `length`, which begins with `pieces`, should join; `len(slabs)`
        means a new one.

        Least read plus launches: padding counts, what all begin with counts once. A row that could
        have its `trunk` goes where it is copied least. `last` allows only what keeps the row at the
        end of the batch, as mlx-lm's `extend` promises.
        """
        fresh = len(self.slabs)
        first = max(0, fresh - 1) if last else 0
        own, row = self.trunk_in(fresh, trunk), Row(length, pieces)
        costs = [
            (held.join_cost(row, self.launch_tokens) + max(0, own.end - held.trunk.end), index)
            for index, held in enumerate(self.slabs[first:], first)
            if held.trunk.begins(pieces) and bool(held.trunk.end) >= bool(own.end)
        ]
        if _alike(self.slabs, own) < self.max_slabs or not costs:
            costs.append((length + self.launch_tokens, fresh))
        return min(costs)[1]

    def commit_join(
        self,
        slab: int,
        length: int,
        capacity: int,
        pieces: SharedPieces = (),
        expected: int = 0,
        *,
        trunk: Trunk = NO_TRUNK,
    ) -> int:
        """Add a row of `length` tokens, soon `expected`, that begins with `pieces`, at the end of
        `slab`, which then has `capacity`, and if it is new the `trunk`; returns its batch row."""
        if slab == len(self.slabs):
            self.slabs.append(Slab(capacity, trunk=trunk))
        held = self.slabs[slab]
        held.capacity = capacity
        held.rows.append(Row(length, pieces, expected))
        held.check()
        return self.first_row(slab) + len(held.rows) - 1

    def commit_leave(self, row: int) -> None:
        """Remove a row; the slab's last row has moved into the hole."""
        index, slot = self.locate(row)
        rows = self.slabs[index].rows
        rows[slot] = rows[-1]
        rows.pop()
        if not rows:
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
            slab.rows = [slab.rows[slot] for slot in kept]
        self.slabs = [slab for slab in self.slabs if slab.rows]

    def advance(self, tokens: int) -> None:
        """Commit `tokens` more in every row."""
        self.advance_by([tokens] * len(self))

    def advance_by(self, tokens: Sequence[int]) -> None:
        """Commit so many more `tokens` in each row."""
        left = iter(tokens)
        for slab in self.slabs:
            for row in slab.rows:
                row.length += next(left)
                assert row.length <= slab.trunk.end + slab.capacity

    def set_length(self, row: int, length: int) -> None:
        """Cut a row to `length` tokens; moves no bytes."""
        index, slot = self.locate(row)
        cut = self.slabs[index].rows[slot]
        assert 0 <= length <= cut.length, "a cut cannot grow a row"
        assert length >= self.slabs[index].trunk.end, "what a trunk has stays"
        cut.length = length
        cut.pieces = tuple(piece for piece in cut.pieces if piece[1] <= length)

    def check(self) -> None:
        """Prove the invariants: no empty slab, no row beyond its slab's capacity or without its
        trunk, no known piece beyond its row."""
        assert all(slab.rows for slab in self.slabs), "an empty slab"
        for slab in self.slabs:
            assert _alike(self.slabs, slab.trunk) <= self.max_slabs, "too many slabs"
            slab.check()


def _alike(slabs: Sequence[Slab], trunk: Trunk) -> int:
    """How many slabs have a trunk, if this is one, or have none."""
    return sum(bool(slab.trunk.end) == bool(trunk.end) for slab in slabs)
