"""Where a step writes in a slab, and the write itself. GPU thread only."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

__all__ = ["Cells", "written"]


class Cells:
    """Where a step writes in one slab, for all layers that keep the same cells: `at`, [n, T];
    `start` if those are start, start + 1, ... in every row. Its n rows stand in `slots`, one after
    the other if none are given."""

    def __init__(
        self, at: mx.array, start: int | None = None, slots: Sequence[int] | None = None
    ) -> None:
        self.at = at
        self.start = start
        self._slots = range(at.shape[0]) if slots is None else slots
        self._flat: dict[tuple[int, ...], mx.array] = {}

    def flat(self, shape: Sequence[int]) -> mx.array:
        """[sides, n, kv_heads, T]: the same in arrays of this shape whose axes before the last
        are one. One index serves all arrays, in a few operations each, where one for each axis
        takes many."""
        sides, slots, heads, capacity, _ = shape
        key = (sides, slots, heads, capacity)
        if key not in self._flat:
            side, slot, head = np.ix_(range(sides), self._slots, range(heads))
            first = (((side * slots + slot) * heads + head) * capacity).astype(np.int32)
            self._flat[key] = mx.array(first)[..., None] + self.at[:, None]
        return self._flat[key]


def written(array: mx.array, new: mx.array, at: slice | mx.array) -> mx.array:
    """A slab's array with new cells [sides, n, kv_heads, T, width], at the same place of every row
    or at flat cells. The old one may not be used any more, or the write copies all of it."""
    if isinstance(at, slice):
        array[:, : new.shape[1], :, at] = new
        return array
    flat = array.reshape(-1, new.shape[-1])
    flat[at] = new
    return flat.reshape(array.shape)
