"""The byte layer of the arena: one slab of one layer, quantized or float.

Every array has the shape [2, slots, kv_heads, capacity, width]: index 0 holds keys, index 1
values, so that one write serves both. Three arrays when quantized (codes, scales, biases:
MLX's affine format), one in float. Writes go through item assignment, which MLX does in
place while nobody else holds the buffer. GPU thread only.
"""

from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from kvactors.core.spec import LayerSpec

__all__ = ["Arrays", "FpPool", "Places", "Pool", "QuantizedPool", "array_widths", "make_pool"]

Arrays = dict[str, mx.array]


def array_widths(layer: LayerSpec) -> dict[str, tuple[int, Any]]:
    """Name -> (last dimension, dtype) of a layer's arrays."""
    dtype = getattr(mx, layer.dtype)
    if layer.bits is None or layer.group_size is None:
        return {"values": (layer.head_dim, dtype)}
    groups = layer.head_dim // layer.group_size
    return {
        "codes": (layer.head_dim * layer.bits // 32, mx.uint32),
        "scales": (groups, dtype),
        "biases": (groups, dtype),
    }


class Places:
    """Where the rows of one slab write `width` tokens each in one step; shared by all layers."""

    def __init__(self, starts: list[int], width: int) -> None:
        self.starts = starts
        self.width = width
        self._cells: dict[tuple[int, ...], mx.array] = {}

    @property
    def common_start(self) -> int | None:
        """The position at which all rows write, if there is one."""
        return self.starts[0] if len(set(self.starts)) == 1 else None

    def cells(self, slots: int, heads: int, capacity: int) -> mx.array:
        """Flat cells, in the order of [2, n, heads, width], of an array of
        [2, slots, heads, capacity] cells."""
        geometry = (slots, heads, capacity)
        if geometry not in self._cells:
            half, row, head, token = np.ogrid[:2, : len(self.starts), :heads, : self.width]
            start = np.array(self.starts)[row]
            cells = ((half * slots + row) * heads + head) * capacity + start + token
            self._cells[geometry] = mx.array(cells.ravel().astype(np.uint32))
        return self._cells[geometry]


class Pool(Protocol):
    """What both kinds of pool offer to the batch cache."""

    layer: LayerSpec
    arrays: Arrays

    def write(self, keys: mx.array, values: mx.array, places: Places) -> None:
        """Store new tokens [n, kv_heads, T, head_dim] at each row's own position."""

    def keys(self, rows: int, extent: int) -> tuple[mx.array, ...]:
        """The first `extent` keys of the first `rows` slots, as stored."""

    def values(self, rows: int, extent: int) -> tuple[mx.array, ...]:
        """The values likewise."""

    def resize(self, slots: int, capacity: int) -> None:
        """Reallocate to at least this many slots and tokens, keeping the contents."""

    def shrink(self, slots: int, capacity: int) -> None:
        """Reallocate to at most this many slots and tokens."""

    def export(self, slot: int, start: int, end: int) -> Arrays:
        """Tokens [start, end) of a slot: [2, kv_heads, tokens, width] arrays, lazy."""

    def load(self, slot: int, start: int, arrays: Arrays) -> None:
        """Store exported tokens at `start` of a slot."""

    def move(self, target: int, source: int) -> None:
        """Copy a slot's bytes to another slot."""

    def gather(self, slots: list[int]) -> None:
        """Keep these slots, in this order."""

    @property
    def shape(self) -> tuple[int, int]:
        """(slots, capacity) allocated."""

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""


class _BasePool:
    """Geometry, growth and movement of rows: the same for every precision."""

    def __init__(self, layer: LayerSpec, slots: int, capacity: int) -> None:
        self.layer = layer
        self.arrays: Arrays = {
            name: mx.zeros((2, slots, layer.kv_heads, capacity, width), dtype=dtype)
            for name, (width, dtype) in array_widths(layer).items()
        }

    @property
    def shape(self) -> tuple[int, int]:
        """(slots, capacity) allocated."""
        first = next(iter(self.arrays.values()))
        return first.shape[1], first.shape[3]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    def encode(self, stacked: mx.array) -> Arrays:
        """Bring [2, n, kv_heads, T, head_dim] into the stored form."""
        raise NotImplementedError

    def write(self, keys: mx.array, values: mx.array, places: Places) -> None:
        """Store new tokens at each row's own position."""
        new = self.encode(mx.stack([keys, values]))
        start = places.common_start
        if start is not None:
            rows, end = len(places.starts), start + places.width
            for name, array in self.arrays.items():
                array[:, :rows, :, start:end] = new[name]
            return
        slots, capacity = self.shape
        cells = places.cells(slots, self.layer.kv_heads, capacity)
        for name in list(self.arrays):
            # Nothing else may refer to the array, or the write copies all of it.
            array = self.arrays.pop(name)
            shape, flat = array.shape, array.reshape(-1, array.shape[-1])
            del array
            flat[cells] = new[name].reshape(-1, shape[-1])
            self.arrays[name] = flat.reshape(shape)

    def keys(self, rows: int, extent: int) -> tuple[mx.array, ...]:
        return tuple(array[0, :rows, :, :extent] for array in self.arrays.values())

    def values(self, rows: int, extent: int) -> tuple[mx.array, ...]:
        return tuple(array[1, :rows, :, :extent] for array in self.arrays.values())

    def resize(self, slots: int, capacity: int) -> None:
        more_slots, more_tokens = slots - self.shape[0], capacity - self.shape[1]
        if more_slots <= 0 and more_tokens <= 0:
            return
        pad = [(0, 0), (0, max(0, more_slots)), (0, 0), (0, max(0, more_tokens)), (0, 0)]
        # One array at a time, evaluated, so that the copy of one only is alive.
        for name in list(self.arrays):
            self.arrays[name] = mx.pad(self.arrays.pop(name), pad)
            mx.eval(self.arrays[name])

    def shrink(self, slots: int, capacity: int) -> None:
        if self.shape[0] <= slots and self.shape[1] <= capacity:
            return
        for name in list(self.arrays):
            self.arrays[name] = mx.contiguous(self.arrays.pop(name)[:, :slots, :, :capacity])
            mx.eval(self.arrays[name])

    def export(self, slot: int, start: int, end: int) -> Arrays:
        return {name: array[:, slot, :, start:end] for name, array in self.arrays.items()}

    def load(self, slot: int, start: int, arrays: Arrays) -> None:
        for name, array in self.arrays.items():
            end = start + arrays[name].shape[2]
            array[:, slot, :, start:end] = arrays[name]

    def move(self, target: int, source: int) -> None:
        # The row is copied out first: a slice that still refers to the buffer at
        # evaluation would make the write copy the whole slab.
        for array in self.arrays.values():
            row = mx.contiguous(array[:, source])
            mx.eval(row)
            array[:, target] = row

    def gather(self, slots: list[int]) -> None:
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


class QuantizedPool(_BasePool):
    """Affine codes with a scale and a bias per group of the head dimension."""

    def encode(self, stacked: mx.array) -> Arrays:
        codes, scales, biases = mx.quantize(
            stacked, group_size=self.layer.group_size, bits=self.layer.bits
        )
        return {"codes": codes, "scales": scales, "biases": biases}


class FpPool(_BasePool):
    """Plain float storage, for kv_bits=None and head dims that no group size divides."""

    def encode(self, stacked: mx.array) -> Arrays:
        return {"values": stacked}


def make_pool(layer: LayerSpec, slots: int, capacity: int) -> Pool:
    """The pool for a layer's precision."""
    kind = FpPool if layer.bits is None or layer.group_size is None else QuantizedPool
    return kind(layer, slots, capacity)
