"""The rows of one layer of keys and values: a pool of bytes for each slab. GPU thread only."""

from copy import copy
from typing import Any

import mlx.core as mx

from kvactors.core.arena.pieces import LayerPieces
from kvactors.core.arena.pools import Pool
from kvactors.core.arena.step import StepGeometry
from kvactors.core.cache.slabs import NO_TRUNK, Trunk
from kvactors.core.cache.slots import SlotTable
from kvactors.core.cache.spec import LayerSpec
from kvactors.core.quant.codec import Arrays

__all__ = ["KVRows"]

# Slots are added in steps of so many: a join copies its row, a fourth one the slab.
SPARE_SLOTS = 4


class KVRows:
    """Bytes of rows that stand as `table` says; `pools` has one pool for each of its slabs. `place`
    is where the `layer` stands in pieces: its group, and which one it is of those."""

    def __init__(self, table: SlotTable, layer: LayerSpec, place: tuple[int, int] = (0, 0)) -> None:
        self.table = table
        self.layer = layer
        self._place = place
        self.pools = [Pool(layer, len(slab.lengths), slab.capacity) for slab in table.slabs]

    def begin(self, geometry: StepGeometry, *, floats: bool) -> None:
        """A step begins: make room for it, and keep floats for it if there may be."""
        for index, slab in enumerate(geometry.slabs):
            pool, held = self.pools[slab], self.table.slabs[slab]
            capacity = self._capacity(held.capacity, geometry.extents[index], held.trunk)
            # There was memory for floats of what it was.
            fits = capacity <= pool.shape[1] or bool(pool.floats.kept_prefix)
            if capacity > pool.shape[1]:
                pool.resize(len(held.lengths), capacity)
            if floats and geometry.floats and fits:
                pool.floats.keep(geometry.kept[index])
            else:
                pool.floats.drop()

    def grow(self, slab: int, length: int, trunk: Trunk = NO_TRUNK) -> None:
        """One more slot at the end of a slab, for at least `length` tokens; of a new slab, behind a
        `trunk`."""
        slots, capacity = self._shape_with(slab, length, trunk)
        if slab < len(self.pools):
            self.pools[slab].resize(slots, capacity, fresh=len(self.table.slabs[slab].lengths))
        else:
            read = LayerPieces(trunk.pieces, *self._place) if self.layer.window is None else None
            self.pools.append(Pool(self.layer, slots, capacity, read))

    def join_growth(self, slab: int, length: int, trunk: Trunk = NO_TRUNK) -> tuple[int, int]:
        """Bytes of a slab now, and once a row of `length` tokens has joined it; of a new slab,
        behind a `trunk`."""
        before = self.pools[slab].stored_bytes if slab < len(self.pools) else 0
        slots, capacity = self._shape_with(slab, length, trunk)
        return before, slots * capacity * self.layer.bytes_per_token()

    def step_growth(self, slab: int, tokens: int) -> tuple[int, int]:
        """Bytes of a slab now, and once its rows have room for `tokens` tokens."""
        held = self.table.slabs[slab]
        capacity = self._capacity(held.capacity, tokens, held.trunk)
        slots = self.pools[slab].shape[0]
        return self.pools[slab].stored_bytes, slots * capacity * self.layer.bytes_per_token()

    def shrink(self, slab: int, slots: int, capacity: int) -> None:
        """Give back what a `slab` has beyond so many `slots`, and `capacity` tokens in each."""
        self.pools[slab].give_way(slots, self._own(capacity, self.table.slabs[slab].trunk))

    def copy_row(self, row: int, other: "KVRows", source: int) -> None:
        """Copy row `source` of this layer of an `other` arena into a `row` made by `grow`: lazy."""
        slab, slot = other.table.locate(source)
        cells = other._bounded(other.table.lengths[source])
        target, target_slot = self.table.locate(row)
        pool = self.pools[target]
        begin = pool.trunk.end
        if begin < cells:
            pool.load(target_slot, begin, other.pools[slab].export(slot, begin, cells))

    def share(self, other: "KVRows", slab: int) -> None:
        """One more slab: another arena's, of this layer. Whoever writes first copies it, unless
        the other one is gone."""
        pool = copy(other.pools[slab])
        # Rows that left may have left their slots.
        pool.shrink(1, pool.shape[1])
        self.pools.append(pool)

    def leave(self, slab: int, slot: int, last: int) -> None:
        """Remove a slot; the slab's last one fills the hole."""
        if slot != last:
            self.pools[slab].move(slot, last)
        elif last == 0:
            del self.pools[slab]

    def keep(self, slots: list[list[int]]) -> None:
        """Keep these slots of each slab, in this order; slabs of none go."""
        for pool, kept in zip(self.pools, slots, strict=True):
            if kept:
                pool.gather(kept)
        self.pools = [pool for pool, kept in zip(self.pools, slots, strict=True) if kept]

    def cut(self, row: int, length: int) -> None:
        """Moves no bytes: what is beyond `length` is overwritten by the next tokens. Codes that
        wait are stored before: those of two steps for one cell would be written in no order."""
        self.pools[self.table.locate(row)[0]].floats.settle()

    def export(self, row: int, start: int, end: int, *, checkpoint: bool) -> Arrays:
        """Tokens [start, end) of a row; of a window its last tokens, if a checkpoint is asked."""
        slab, slot = self.table.locate(row)
        window, cells = self.layer.window, self.layer.cells
        if window is None or cells is None:
            return self.pools[slab].export(slot, start, end)
        if not checkpoint:
            return {}
        at = mx.arange(max(0, end - window), end) % cells
        return {name: array[:, slot][:, :, at] for name, array in self.pools[slab].arrays.items()}

    def load(self, row: int, start: int, end: int, arrays: Arrays) -> None:
        """Store what was exported of tokens [start, end) in `row`; `arrays` by name."""
        slab, slot = self.table.locate(row)
        cells = self.layer.cells
        if cells is None:
            self.pools[slab].load(slot, start, arrays)
            return
        tokens = next(iter(arrays.values())).shape[2]
        self.pools[slab].put(slot, mx.arange(end - tokens, end) % cells, arrays)

    @property
    def nbytes(self) -> int:
        """Bytes allocated, padding and spare slots included."""
        return sum(pool.nbytes for pool in self.pools)

    @property
    def float_bytes(self) -> int:
        """Bytes more that steps would take to keep what codes say as floats."""
        return sum(
            pool.floats.bytes_more(self.table.shared(slab)) for slab, pool in enumerate(self.pools)
        )

    @property
    def state(self) -> list[Any]:
        """Every array, for `mx.eval`."""
        return [list(pool.arrays.values()) for pool in self.pools]

    def _bounded(self, tokens: int) -> int:
        return tokens if self.layer.cells is None else min(tokens, self.layer.cells)

    def _own(self, tokens: int, trunk: Trunk) -> int:
        """Cells of a row for so many `tokens` behind a `trunk`, which a ring does not read."""
        cells = self.layer.cells
        return tokens if cells is None else min(trunk.end + tokens, cells)

    def _capacity(self, current: int, tokens: int, trunk: Trunk) -> int:
        """Cells of a slab of `current` tokens that must hold `tokens` in each row, those of its
        `trunk` among them."""
        return self._own(self.table.capacity_for(current, tokens, trunk.end), trunk)

    def _shape_with(self, slab: int, length: int, trunk: Trunk) -> tuple[int, int]:
        """(slots, capacity) of a slab once a row of `length` tokens has joined it, of a new one
        behind a `trunk`."""
        if slab == len(self.table.slabs):
            return 1, self._capacity(0, length, trunk)
        held = self.table.slabs[slab]
        rows = len(held.lengths)
        slots = self.pools[slab].shape[0] if self.pools else rows
        if rows == slots:
            slots += 1 if self.table.lean else min(slots, SPARE_SLOTS)
        return slots, self._capacity(held.capacity, length, held.trunk)
