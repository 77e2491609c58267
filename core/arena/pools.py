"""The byte layer of the arena: one slab of one layer, quantized or float.

Every array has the shape [sides, slots, kv_heads, capacity, width], named as
`kvactors.core.quant.codec` says. Writes go through item assignment, which MLX does in place while
nobody else holds the buffer. Behind a trunk the arrays begin where that ends; tokens are counted
from the row's first one all the same, and who reads both gets them joined, for as long as that
takes. GPU thread only.
"""

from collections.abc import Sequence
from copy import copy

import mlx.core as mx

from kvactors.core.arena.cells import Cells, written
from kvactors.core.arena.float_copy_cpu import KeptFloats
from kvactors.core.arena.pieces import LayerPieces
from kvactors.core.cache.spec import LayerSpec
from kvactors.core.quant.codec import PRECISION, Arrays, StoredKV, array_widths, encode

__all__ = ["Pool"]


class Pool:
    """One slab of one layer: geometry, growth and movement of rows; `capacity` tokens in each of
    its `slots`, behind what all of them read of a `trunk`. `stored` are its arrays by name, but for
    what `floats` wait to write: `arrays` has that too."""

    def __init__(
        self, layer: LayerSpec, slots: int, capacity: int, trunk: LayerPieces | None = None
    ) -> None:
        self.layer = layer
        self.trunk = trunk or LayerPieces()
        self._sides = layer.sides
        self.stored: Arrays = {
            name: mx.zeros((sides, slots, layer.kv_heads, capacity, width), dtype=dtype)
            for name, (sides, width, dtype) in array_widths(layer).items()
        }
        self.floats = KeptFloats(layer, self.stored, whole=not self.trunk.end)

    @property
    def arrays(self) -> Arrays:
        """Every array, by name."""
        self.floats.settle()
        return self.stored

    def _changing(self) -> Arrays:
        """The arrays, which are about to change otherwise than by a step."""
        self.floats.drop()
        return self.stored

    def __copy__(self) -> "Pool":
        """The same bytes until one of the two writes."""
        pool = object.__new__(Pool)
        pool.layer, pool._sides, pool.trunk = self.layer, self._sides, self.trunk
        pool.stored = {name: copy(array) for name, array in self.arrays.items()}
        pool.floats = KeptFloats(pool.layer, pool.stored, whole=not pool.trunk.end)
        return pool

    @property
    def shape(self) -> tuple[int, int]:
        """(slots, capacity) allocated."""
        first = next(iter(self.stored.values()))
        return first.shape[1], first.shape[3]

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self.stored_bytes + self.floats.nbytes

    @property
    def stored_bytes(self) -> int:
        """Bytes allocated without floats."""
        return sum(array.nbytes for array in self.stored.values())

    def write(self, keys: mx.array, values: mx.array, cells: Cells) -> None:
        """Store new tokens' `keys` and `values` [n, kv_heads, T, dim] at the `cells` of their
        rows."""
        new = encode(self.layer, keys, values)
        at: slice | mx.array
        if self.floats.copy is not None:
            self.floats.copy.write(new, cells.flat(self.floats.copy.shape))
            return
        if cells.start is not None:
            at = slice(cells.start, cells.start + keys.shape[2])
        else:
            at = cells.flat(next(iter(self.stored.values())).shape)
        for name, array in self.stored.items():
            self.stored[name] = written(array, new[name], at)

    def read(self, rows: int, extent: int, *, floats: bool = False, own: bool = False) -> StoredKV:
        """The first `extent` keys and values of the first `rows` slots, as stored, or as the floats
        that are kept if `floats` will do; only those behind the trunk if `own` ones are asked."""
        keys, values = sides = self._sides
        kept = self.floats.copy if floats else None
        begin = self.trunk.end if own else 0
        arrays = {"": kept.floats} if kept is not None else self.arrays
        if self.trunk.end and not own:
            arrays = self._joined(slice(0, rows), 0, extent)
        if keys != values:
            parts = [(name, array[:, :rows, :, : extent - begin]) for name, array in arrays.items()]
            first, second = (
                tuple(part for name, part in parts if name.startswith(prefix))
                for prefix in ("k.", "v.")
            )
            return StoredKV(first, second, sides, begin)
        first, second = (
            tuple(array[side : side + 1, :rows, :, : extent - begin] for array in arrays.values())
            for side in (0, 1)
        )
        return StoredKV(first, second, sides, begin)

    def _joined(self, slots: slice, start: int, end: int) -> Arrays:
        """Tokens [start, end) of these slots, copied if the trunk has some and they have others:
        [sides, slots, kv_heads, tokens, width]."""
        base, rows = self.trunk.end, slots.stop - slots.start
        found = {}
        for name, array in self.arrays.items():
            parts = self.trunk.read(name, start, end, rows)
            if end > base or not parts:
                parts.append(array[:, slots, :, max(0, start - base) : end - base])
            found[name] = parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=3)
        return found

    def prefix_floats(self, tokens: int, precision: mx.Dtype = PRECISION) -> tuple[mx.array, ...]:
        """The first `tokens` keys and values of the first slot as floats, as they are kept if they
        are: [1, kv_heads, tokens, dim]. Of another `precision` none are kept."""
        if precision != PRECISION:
            return self.read(1, tokens).floats(precision)
        found = self.floats.prefix(tokens)
        if not found:
            found = self.read(1, tokens, floats=True).floats(PRECISION)
            self.floats.note_prefix(found)
        return found

    def resize(self, slots: int, capacity: int, fresh: int | None = None) -> None:
        """Reallocate to at least this many `slots`, and tokens (`capacity`), keeping the contents
        but for the floats that a row left in a `fresh` slot: steps read these behind a mask, and no
        weight makes nothing of what is no number."""
        if fresh is not None and fresh < self.shape[0]:
            for array in self._changing().values():
                if mx.issubdtype(array.dtype, mx.floating):
                    array[:, fresh] = 0
        more_slots, more_tokens = slots - self.shape[0], capacity - self.shape[1]
        if more_slots <= 0 and more_tokens <= 0:
            return
        self.floats.grow()
        arrays = self.stored
        pad = [(0, 0), (0, max(0, more_slots)), (0, 0), (0, max(0, more_tokens)), (0, 0)]
        # One array at a time, evaluated, so that the copy of one only is alive.
        for name in list(arrays):
            arrays[name] = mx.pad(arrays.pop(name), pad)
            mx.eval(arrays[name])

    def shrink(self, slots: int, capacity: int) -> None:
        """Reallocate to at most this many slots and tokens, without floats."""
        arrays = self._changing()
        if self.shape[0] <= slots and self.shape[1] <= capacity:
            mx.eval(arrays)
            return
        for name in list(arrays):
            arrays[name] = mx.contiguous(arrays.pop(name)[:, :slots, :, :capacity])
            mx.eval(arrays[name])

    def give_way(self, slots: int, capacity: int) -> None:
        """`shrink`, and keep no floats for a while."""
        self.shrink(slots, capacity)
        self.floats.drop(wait=True)

    def export(self, slot: int, start: int, end: int) -> Arrays:
        """Tokens [start, end) of a slot: [sides, kv_heads, tokens, width] arrays, lazy."""
        found = self._joined(slice(slot, slot + 1), start, end)
        return {name: array[:, 0] for name, array in found.items()}

    def load(self, slot: int, start: int, arrays: Arrays) -> None:
        """Store exported tokens, `arrays` by name, at `start` of a slot, behind the trunk."""
        assert start >= self.trunk.end, "a trunk is not written"
        start -= self.trunk.end
        tokens = next(iter(arrays.values())).shape[2]
        self.put(slot, slice(start, start + tokens), arrays)

    def put(self, slot: int, at: slice | mx.array, arrays: Arrays) -> None:
        """Store exported tokens, `arrays` by name, each [sides, kv_heads, tokens, width], in the
        cells `at` (a slice, or [tokens]) of a `slot`."""
        for name, array in self._changing().items():
            array[:, slot, :, at] = arrays[name]

    def move(self, target: int, source: int) -> None:
        """Copy a slot's bytes to another slot."""
        arrays = self._changing()
        # The row is copied out first: a slice that still refers to the buffer at
        # evaluation would make the write copy the whole slab.
        row = {name: mx.contiguous(array[:, source]) for name, array in arrays.items()}
        mx.eval(row)
        for name, array in arrays.items():
            array[:, target] = row[name]

    def gather_into(self, slot: int, start: int, cells: Sequence[int]) -> None:
        """Copy these `cells` of a `slot`, in this order, to start, start + 1, ... of it."""
        target = slice(start, start + len(cells))
        if list(cells) == list(range(target.start, target.stop)):
            return
        arrays, at = self._changing(), mx.array(list(cells))
        for array in arrays.values():
            # As in `move`: taken out first. Some of them may be written over.
            taken = mx.take(array[:, slot], at, axis=2)
            mx.eval(taken)
            array[:, slot, :, target] = taken

    def gather(self, slots: list[int]) -> None:
        """Keep these slots, in this order."""
        if slots == list(range(len(slots))):
            return
        if slots == sorted(slots):
            for target, source in enumerate(slots):
                if target != source:
                    self.move(target, source)
            return
        arrays, index = self._changing(), mx.array(slots)
        for name in list(arrays):
            arrays[name] = mx.take(arrays.pop(name), index, axis=1)
            mx.eval(arrays[name])
