"""The byte layer of the arena: one slab of one layer, quantized or float.

Every array has the shape [sides, slots, kv_heads, capacity, width]. Where keys and values are
stored alike, index 0 holds keys and index 1 values, so that one write serves both: three
arrays when quantized (codes, scales, biases: MLX's affine format), one in float. Where they
differ each side has its own arrays, named "k.codes", "v.codes" and so on. Writes go through
item assignment, which MLX does in place while nobody else holds the buffer. GPU thread only.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any

import mlx.core as mx
import numpy as np

from kvactors.core.spec import LayerSpec, Side
from kvactors.core.unpacking import dequantize

__all__ = ["Arrays", "Cells", "Pool", "Stored", "array_widths", "encode", "to_float"]

Arrays = dict[str, mx.array]

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
    if side.bits is None or side.group_size is None:
        return stored[0].astype(dtype)
    return dequantize(*stored, side, dtype)


class Cells:
    """Where a step writes in one slab, for all layers that keep the same cells: `at`, [n, T] of
    each row; `start` if those are start, start + 1, ... in every row."""

    def __init__(self, at: mx.array, start: int | None = None) -> None:
        self.at = at
        self.start = start
        self._flat: dict[tuple[int, ...], mx.array] = {}

    def flat(self, shape: Sequence[int]) -> mx.array:
        """[sides, n, kv_heads, T]: the same in arrays of this shape whose axes before the last
        are one."""
        sides, slots, heads, capacity, _ = shape
        key = (sides, slots, heads, capacity)
        if key not in self._flat:
            side, row, head = np.ogrid[:sides, : self.at.shape[0], :heads]
            first = (((side * slots + row) * heads + head) * capacity).astype(np.int32)
            self._flat[key] = mx.array(first)[..., None] + self.at[:, None]
        return self._flat[key]


class Pool:
    """One slab of one layer: geometry, growth and movement of rows."""

    def __init__(self, layer: LayerSpec, slots: int, capacity: int) -> None:
        self.layer = layer
        self.arrays: Arrays = {
            name: mx.zeros((sides, slots, layer.kv_heads, capacity, width), dtype=dtype)
            for name, (sides, width, dtype) in array_widths(layer).items()
        }

    def __copy__(self) -> "Pool":
        """The same bytes until one of the two writes."""
        pool = object.__new__(Pool)
        pool.layer = self.layer
        pool.arrays = {name: copy(array) for name, array in self.arrays.items()}
        return pool

    @property
    def shape(self) -> tuple[int, int]:
        """(slots, capacity) allocated."""
        first = next(iter(self.arrays.values()))
        return first.shape[1], first.shape[3]

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(array.nbytes for array in self.arrays.values())

    def write(self, keys: mx.array, values: mx.array, cells: Cells) -> None:
        """Store new tokens [n, kv_heads, T, dim] at the cells of their rows."""
        new = encode(self.layer, keys, values)
        if cells.start is not None:
            rows, start, end = keys.shape[0], cells.start, cells.start + keys.shape[2]
            for name, array in self.arrays.items():
                array[:, :rows, :, start:end] = new[name]
            return
        # One index of cells serves all arrays: a few operations, where one for each axis takes
        # many.
        at = cells.flat(next(iter(self.arrays.values())).shape)
        for name in list(self.arrays):
            # Nothing else may refer to the array, or the write copies all of it.
            array = self.arrays.pop(name)
            shape, flat = array.shape, array.reshape(-1, array.shape[-1])
            del array
            flat[at] = new[name]
            self.arrays[name] = flat.reshape(shape)

    def keys(self, rows: int, extent: int) -> Stored:
        """The first `extent` keys of the first `rows` slots, as stored: [1, rows, kv_heads, extent,
        width]. The axis in front spares an operation for each array."""
        return self._stored("k.", 0, rows, extent)

    def values(self, rows: int, extent: int) -> Stored:
        """The values likewise."""
        return self._stored("v.", 1, rows, extent)

    def _stored(self, prefix: str, index: int, rows: int, extent: int) -> Stored:
        keys, values = self.layer.sides
        if keys == values:
            side = slice(index, index + 1)
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
        pad = [(0, 0), (0, max(0, more_slots)), (0, 0), (0, max(0, more_tokens)), (0, 0)]
        # One array at a time, evaluated, so that the copy of one only is alive.
        for name in list(self.arrays):
            self.arrays[name] = mx.pad(self.arrays.pop(name), pad)
            mx.eval(self.arrays[name])

    def shrink(self, slots: int, capacity: int) -> None:
        """Reallocate to at most this many slots and tokens."""
        if self.shape[0] <= slots and self.shape[1] <= capacity:
            return
        for name in list(self.arrays):
            self.arrays[name] = mx.contiguous(self.arrays.pop(name)[:, :slots, :, :capacity])
            mx.eval(self.arrays[name])

    def export(self, slot: int, start: int, end: int) -> Arrays:
        """Cells [start, end) of a slot: [sides, kv_heads, tokens, width] arrays, lazy."""
        return {name: array[:, slot, :, start:end] for name, array in self.arrays.items()}

    def load(self, slot: int, start: int, arrays: Arrays) -> None:
        """Store exported tokens at `start` of a slot."""
        for name, array in self.arrays.items():
            end = start + arrays[name].shape[2]
            array[:, slot, :, start:end] = arrays[name]

    def move(self, target: int, source: int) -> None:
        """Copy a slot's bytes to another slot."""
        # The row is copied out first: a slice that still refers to the buffer at
        # evaluation would make the write copy the whole slab.
        for array in self.arrays.values():
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
        index = mx.array(slots)
        for name in list(self.arrays):
            self.arrays[name] = mx.take(self.arrays.pop(name), index, axis=1)
            mx.eval(self.arrays[name])
