"""What the codes of few rows say, kept as floats: for decode steps on a CPU. GPU thread only.

A step of short rows is launches more than reading: products of floats need fewer, and the codes of
a step are put where they belong later, many steps in one write. Of many long rows floats would take
half a gigabyte for a quarter of the time (bench/LOG.md).
"""

import mlx.core as mx

from kvactors.core.cells import written
from kvactors.core.spec import Side
from kvactors.core.unpacking import PRECISION, dequantize

__all__ = ["LATE_STEPS", "MOST_BYTES", "FloatCopy"]

# Of the floats of one slab and layer.
MOST_BYTES = 16 << 20
# Steps whose codes wait.
LATE_STEPS = 64


class FloatCopy:
    """Floats [sides, slots, kv_heads, capacity, dim] of `stored`, a slab's codes, scales and
    biases by name; these are true after `settle`."""

    def __init__(self, stored: dict[str, mx.array], side: Side) -> None:
        self._stored = stored
        self._side = side
        self._late: list[tuple[dict[str, mx.array], mx.array]] = []
        self.floats = self._said(stored)
        self._flat = self.floats.reshape(-1, side.dim)

    @property
    def nbytes(self) -> int:
        """Bytes allocated, those of codes that wait included."""
        waits = sum(array.nbytes for array in self._late[0][0].values()) if self._late else 0
        return self.floats.nbytes + len(self._late) * waits

    def write(self, new: dict[str, mx.array], at: mx.array) -> None:
        """A step's new codes, at the flat cells [sides, n, kv_heads, T]."""
        if self._late and (len(self._late) == LATE_STEPS or self._late[0][1].shape != at.shape):
            self.settle()
            mx.async_eval(self._stored)  # type: ignore[no-untyped-call]
        self._late.append((new, at))
        self._flat[at] = self._said(new)
        self.floats = self._flat.reshape(self.floats.shape)

    def settle(self) -> None:
        """Store what waits."""
        if not self._late:
            return
        at = mx.concatenate([at for _, at in self._late], axis=-1)
        for name, array in self._stored.items():
            new = mx.concatenate([new[name] for new, _ in self._late], axis=3)
            self._stored[name] = written(array, new, at)
        self._late.clear()

    def _said(self, codes: dict[str, mx.array]) -> mx.array:
        return dequantize(tuple(codes.values()), self._side, PRECISION)
