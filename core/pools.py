"""The byte layer of the arena: one slab of one layer, quantized or float.

Every array has the shape [sides, slots, kv_heads, capacity, width]. Where keys and values are
stored alike, index 0 holds keys and index 1 values, so that one write serves both: three
arrays when quantized (codes, scales, biases: MLX's affine format), one in float. Where they
differ each side has its own arrays, named "k.codes", "v.codes" and so on. Writes go through
item assignment, which MLX does in place while nobody else holds the buffer. GPU thread only.
"""

from copy import copy
from typing import Any

import mlx.core as mx

from kvactors.core.cells import Cells, written
from kvactors.core.float_copy import LATE_STEPS, MOST_BYTES, FloatCopy
from kvactors.core.spec import LayerSpec, Side
from kvactors.core.unpacking import PRECISION, dequantize

__all__ = ["Arrays", "Pool", "Stored", "array_widths", "encode", "to_float"]

Arrays = dict[str, mx.array]

# Steps for which a slab that gave room to others is not kept as floats.
_STEPS_WITHOUT_FLOATS = 64

Stored = tuple[mx.array, ...]
"""Codes, scales and biases; or one array of floats; or none, where a side has no numbers."""


def array_widths(layer: LayerSpec) -> dict[str, tuple[int, int, Any]]:
    """Name -> (sides, last dimension, dtype) of a layer's arrays."""
    keys, values = layer.sides
    if keys == values:
        return {name: (2, *width) for name, width in _side_widths(keys, layer.dtype).items()}
    return {
        f"{prefix}.{name}": (1, *width)
        for prefix, side in (("k", keys), ("v", values))
        for name, width in _side_widths(side, layer.dtype).items()
    }


def _side_widths(side: Side, dtype_name: str) -> dict[str, tuple[int, Any]]:
    dtype = getattr(mx, dtype_name)
    if side.dim == 0:
        return {}
    if side.bits is None or side.group_size is None:
        return {"values": (side.dim, dtype)}
    groups = side.dim // side.group_size
    return {
        "codes": (side.dim * side.bits // 32, mx.uint32),
        "scales": (groups, dtype),
        "biases": (groups, dtype),
    }


def encode(layer: LayerSpec, keys: mx.array, values: mx.array) -> Arrays:
    """Bring keys and values, [..., dim], into the stored form, [sides, ..., width]."""
    first, second = layer.sides
    if first == second:
        return _encode_side(first, mx.stack([keys, values]))
    return {
        f"{prefix}.{name}": array
        for prefix, side, floats in (("k", first, keys), ("v", second, values))
        for name, array in _encode_side(side, floats[None]).items()
    }


def _encode_side(side: Side, floats: mx.array) -> Arrays:
    if side.dim == 0:
        return {}
    if side.bits is None or side.group_size is None:
        return {"values": floats}
    codes, scales, biases = mx.quantize(floats, group_size=side.group_size, bits=side.bits)
    return {"codes": codes, "scales": scales, "biases": biases}


def to_float(stored: Stored, side: Side, dtype: Any = mx.float32) -> mx.array:
    """What is stored, in this dtype; at least float32 keeps every number as it is."""
    if len(stored) == 1:
        return stored[0].astype(dtype)
    return dequantize(stored, side, dtype)


class Pool:
    """One slab of one layer: geometry, growth and movement of rows."""

    def __init__(self, layer: LayerSpec, slots: int, capacity: int) -> None:
        self.layer = layer
        self._sides = layer.sides
        self._stored: Arrays = {
            name: mx.zeros((sides, slots, layer.kv_heads, capacity, width), dtype=dtype)
            for name, (sides, width, dtype) in array_widths(layer).items()
        }
        self._copy: FloatCopy | None = None
        self._beginning: tuple[mx.array, ...] = ()
        self._shared = 0
        self._without_floats = 0

    @property
    def arrays(self) -> Arrays:
        """Every array, by name."""
        if self._copy is not None:
            self._copy.settle()
        return self._stored

    def _drop_floats(self) -> Arrays:
        """The arrays, which are about to change otherwise than by a step."""
        arrays, self._copy, self._beginning = self.arrays, None, ()
        return arrays

    def __copy__(self) -> "Pool":
        """The same bytes until one of the two writes."""
        pool = object.__new__(Pool)
        pool.layer, pool._sides = self.layer, self._sides
        pool._stored = {name: copy(array) for name, array in self.arrays.items()}
        pool._copy, pool._beginning, pool._shared, pool._without_floats = None, (), 0, 0
        return pool

    @property
    def shape(self) -> tuple[int, int]:
        """(slots, capacity) allocated."""
        first = next(iter(self._stored.values()))
        return first.shape[1], first.shape[3]

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        floats = sum(array.nbytes for array in self._beginning)
        return self.stored_bytes + floats + (0 if self._copy is None else self._copy.nbytes)

    @property
    def stored_bytes(self) -> int:
        """Bytes allocated without floats."""
        return sum(array.nbytes for array in self._stored.values())

    def float_bytes(self, shared: int = 0) -> int:
        """Bytes more that `keep_floats` would take, those of codes that wait included; of a slab
        that is too large, those of the `shared` tokens that all rows begin with."""
        if self._copy or self._beginning:
            return 0
        if whole := self._bytes_of_floats(*self.shape):
            return whole + LATE_STEPS * self.stored_bytes // self.shape[1]
        return self._bytes_of_floats(1, shared) if self.layer.window is None else 0

    def _bytes_of_floats(self, slots: int, tokens: int) -> int:
        """0 if they are too many, or what is stored is no codes, or not alike for both sides."""
        if "codes" not in self._stored:
            return 0
        layer = self.layer
        nbytes = 2 * slots * layer.kv_heads * tokens * layer.head_dim * PRECISION.size
        return nbytes if nbytes <= MOST_BYTES else 0

    def keep_floats(self, wanted: bool, shared: int = 0) -> None:
        """A step begins: what is stored is kept as floats too, or no longer; of a slab that is too
        large, the `shared` tokens that all rows begin with."""
        self._shared = shared if wanted and not self._without_floats else 0
        if self._beginning and self._beginning[0].shape[2] != self._shared:
            self._beginning = ()
        if not wanted:
            self._drop_floats()
        elif self._without_floats:
            self._without_floats -= 1
        elif self._copy is None and self._bytes_of_floats(*self.shape):
            self._copy = FloatCopy(self._stored, self._sides[0])

    def beginning(self, tokens: int, dtype: Any = PRECISION) -> tuple[mx.array, ...]:
        """The first `tokens` keys and values of the first slot as floats, as they are kept if they
        are: [1, kv_heads, tokens, dim]."""
        if self._beginning and tokens == self._shared:
            return self._beginning
        stored = self.keys(1, tokens, floats=True), self.values(1, tokens, floats=True)
        floats = tuple(
            to_float(some, side, dtype)[0] for some, side in zip(stored, self._sides, strict=True)
        )
        if self._copy is None and tokens == self._shared and self._bytes_of_floats(1, tokens):
            self._beginning = floats
        return floats

    def write(self, keys: mx.array, values: mx.array, cells: Cells) -> None:
        """Store new tokens [n, kv_heads, T, dim] at the cells of their rows."""
        new = encode(self.layer, keys, values)
        at: slice | mx.array
        if self._copy is not None:
            self._copy.write(new, cells.flat(self._copy.floats.shape))
            return
        if cells.start is not None:
            at = slice(cells.start, cells.start + keys.shape[2])
        else:
            at = cells.flat(next(iter(self._stored.values())).shape)
        for name, array in self._stored.items():
            self._stored[name] = written(array, new[name], at)

    def keys(self, rows: int, extent: int, *, floats: bool = False) -> Stored:
        """The first `extent` keys of the first `rows` slots: [1, rows, kv_heads, extent, width], as
        stored, or as the floats that are kept if `floats` will do. The axis in front spares an
        operation for each array."""
        return self._read("k.", 0, rows, extent, floats)

    def values(self, rows: int, extent: int, *, floats: bool = False) -> Stored:
        """The values likewise."""
        return self._read("v.", 1, rows, extent, floats)

    def _read(self, prefix: str, index: int, rows: int, extent: int, floats: bool) -> Stored:
        keys, values = self._sides
        if keys == values:
            side = slice(index, index + 1)
            if floats and self._copy is not None:
                return (self._copy.floats[side, :rows, :, :extent],)
            return tuple(array[side, :rows, :, :extent] for array in self.arrays.values())
        return tuple(
            array[:, :rows, :, :extent]
            for name, array in self.arrays.items()
            if name.startswith(prefix)
        )

    def resize(self, slots: int, capacity: int) -> None:
        """Reallocate to at least this many slots and tokens, keeping the contents."""
        more_slots, more_tokens = slots - self.shape[0], capacity - self.shape[1]
        if more_slots <= 0 and more_tokens <= 0:
            return
        arrays = self._drop_floats()
        pad = [(0, 0), (0, max(0, more_slots)), (0, 0), (0, max(0, more_tokens)), (0, 0)]
        # One array at a time, evaluated, so that the copy of one only is alive.
        for name in list(arrays):
            arrays[name] = mx.pad(arrays.pop(name), pad)
            mx.eval(arrays[name])

    def shrink(self, slots: int, capacity: int) -> None:
        """Reallocate to at most this many slots and tokens, without floats."""
        arrays = self._drop_floats()
        if self.shape[0] <= slots and self.shape[1] <= capacity:
            mx.eval(arrays)
            return
        for name in list(arrays):
            arrays[name] = mx.contiguous(arrays.pop(name)[:, :slots, :, :capacity])
            mx.eval(arrays[name])

    def give_way(self, slots: int, capacity: int) -> None:
        """`shrink`, and keep no floats for a while."""
        self.shrink(slots, capacity)
        self._without_floats = _STEPS_WITHOUT_FLOATS

    def export(self, slot: int, start: int, end: int) -> Arrays:
        """Cells [start, end) of a slot: [sides, kv_heads, tokens, width] arrays, lazy."""
        return {name: array[:, slot, :, start:end] for name, array in self.arrays.items()}

    def load(self, slot: int, start: int, arrays: Arrays) -> None:
        """Store exported tokens at `start` of a slot."""
        tokens = next(iter(arrays.values())).shape[2]
        self.put(slot, slice(start, start + tokens), arrays)

    def put(self, slot: int, at: slice | mx.array, arrays: Arrays) -> None:
        """Store exported tokens in these cells of a slot."""
        for name, array in self._drop_floats().items():
            array[:, slot, :, at] = arrays[name]

    def move(self, target: int, source: int) -> None:
        """Copy a slot's bytes to another slot."""
        # The row is copied out first: a slice that still refers to the buffer at
        # evaluation would make the write copy the whole slab.
        for array in self._drop_floats().values():
            row = mx.contiguous(array[:, source])
            mx.eval(row)
            array[:, target] = row

    def gather(self, slots: list[int]) -> None:
        """Keep these slots, in this order."""
        if slots == list(range(len(slots))):
            return
        if slots == sorted(slots):
            for target, source in enumerate(slots):
                if target != source:
                    self.move(target, source)
            return
        arrays, index = self._drop_floats(), mx.array(slots)
        for name in list(arrays):
            arrays[name] = mx.take(arrays.pop(name), index, axis=1)
            mx.eval(arrays[name])
