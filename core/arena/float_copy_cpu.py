"""What the codes of few rows say, kept as floats: for decode steps on a CPU. GPU thread only.

A step of short rows is launches more than reading: products of floats need fewer, and the codes of
a step are put where they belong later, many steps in one write. Of many long rows floats would take
half a gigabyte for a quarter of the time (bench/LOG.md).
"""

from collections.abc import Sequence
from copy import copy

import mlx.core as mx

from kvactors.core.arena.cells import written
from kvactors.core.cache.spec import LayerSpec, Side
from kvactors.core.quant.codec import PRECISION, Arrays, dequantize

__all__ = ["LATE_STEPS", "MOST_BYTES", "FloatCopy", "KeptFloats"]

# Of the floats of one slab and layer.
MOST_BYTES = 16 << 20
# Steps whose codes wait.
LATE_STEPS = 64
# Steps for which a slab that gave room to others is not kept as floats.
_STEPS_WITHOUT = 64


class FloatCopy:
    """Floats of `stored`, a slab's codes, scales and biases by name, which are true after `settle`:
    `flat` is [cells, dim], `floats` the same as [sides, slots, kv_heads, capacity, dim]."""

    def __init__(self, stored: dict[str, mx.array], side: Side) -> None:
        self._stored = stored
        self._side = side
        self._late: list[tuple[dict[str, mx.array], mx.array]] = []
        said = self._said(stored)
        self.shape = said.shape
        self.flat = said.reshape(-1, side.dim)

    @property
    def floats(self) -> mx.array:
        """[sides, slots, kv_heads, capacity, dim]."""
        return self.flat.reshape(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes allocated, those of codes that wait included."""
        waits = sum(array.nbytes for array in self._late[0][0].values()) if self._late else 0
        return self.flat.nbytes + len(self._late) * waits

    def write(self, new: dict[str, mx.array], at: mx.array) -> None:
        """A step's new codes, at the flat cells [sides, n, kv_heads, T]."""
        self._wait(new, at)
        self.flat[at] = self._said(new)

    def stand_in(self, flat: mx.array) -> "FloatCopy":
        """One that begins with these floats, [cells, dim], and has no codes but those of a step."""
        other = copy(self)
        other.flat, other._late, other._stored = flat, [], {}
        return other

    @property
    def waiting(self) -> list[mx.array]:
        """The codes of the one step that wait, [sides, n, kv_heads, T, width], and their cells."""
        ((new, at),) = self._late
        return [*new.values(), at]

    def accept(self, flat: mx.array, waiting: list[mx.array]) -> None:
        """A step was taken that left these floats, [cells, dim], and codes that wait, as `waiting`
        has them."""
        *codes, at = waiting
        self.flat = flat
        self._wait(dict(zip(self._stored, codes, strict=True)), at)

    def _wait(self, new: dict[str, mx.array], at: mx.array) -> None:
        if self._late and (len(self._late) == LATE_STEPS or self._late[0][1].shape != at.shape):
            self.settle()
        self._late.append((new, at))

    def settle(self) -> None:
        """Store what waits."""
        if not self._late:
            return
        at = mx.concatenate([at for _, at in self._late], axis=-1)
        for name, array in self._stored.items():
            new = mx.concatenate([new[name] for new, _ in self._late], axis=3)
            self._stored[name] = written(array, new, at)
        self._late.clear()
        # Or who settles often keeps a graph that grows.
        mx.async_eval(self._stored)  # type: ignore[no-untyped-call]

    def _said(self, codes: dict[str, mx.array]) -> mx.array:
        return dequantize(tuple(codes.values()), self._side, PRECISION)


class KeptFloats:
    """What one slab of `stored` arrays of a `layer` keeps as floats beside them: the `whole`, or
    where that is too large, or begins with a trunk that stands elsewhere, the tokens that all of
    its rows begin with."""

    def __init__(self, layer: LayerSpec, stored: Arrays, *, whole: bool = True) -> None:
        self.copy: FloatCopy | None = None
        self._layer = layer
        self._stored = stored
        self._whole = whole
        self._prefix: tuple[mx.array, ...] = ()
        self.begun = True
        """Whether the prefix is kept that a step of these rows keeps, if it does."""
        self._shared = 0
        self._waits = 0

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        prefix = sum(array.nbytes for array in self._prefix)
        return prefix + (0 if self.copy is None else self.copy.nbytes)

    def bytes_more(self, shared: int = 0) -> int:
        """Bytes that `keep` would take, those of codes that wait included, with so many tokens that
        all rows begin with."""
        if self.copy or (self._prefix and self._prefix[0].shape[2] == shared):
            return 0
        if copied := self._copied:
            stored = sum(array.nbytes for array in self._stored.values())
            return copied + LATE_STEPS * stored // self._shape[1]
        return self._bytes_of(1, shared) if self._layer.window is None else 0

    @property
    def _shape(self) -> tuple[int, int]:
        first = next(iter(self._stored.values()))
        return first.shape[1], first.shape[3]

    @property
    def _copied(self) -> int:
        """Bytes of floats of all, 0 if none are kept."""
        return self._bytes_of(*self._shape) if self._whole else 0

    def _bytes_of(self, slots: int, tokens: int) -> int:
        """0 if they are too many, or what is stored is no codes, or not alike for both sides."""
        if "codes" not in self._stored:
            return 0
        layer = self._layer
        nbytes = 2 * slots * layer.kv_heads * tokens * layer.head_dim * PRECISION.size
        return nbytes if nbytes <= MOST_BYTES else 0

    def keep(self, shared: int | None = 0) -> None:
        """A step begins that reads floats, with so many tokens that all rows begin with; None: as
        many as before."""
        shared = self._shared if shared is None else shared
        shared = 0 if self._waits else shared
        self.begun, self._shared = shared == self._shared, shared
        if self._prefix and self._prefix[0].shape[2] != self._shared:
            self._prefix = ()
        if self._waits:
            self._waits -= 1
        elif self.copy is None and self._copied:
            self.copy = FloatCopy(self._stored, self._layer.sides[0])

    def settle(self) -> None:
        """Store the codes that wait."""
        if self.copy is not None:
            self.copy.settle()

    def drop(self, *, wait: bool = False) -> None:
        """Keep none, and if asked none for a while: the slab gave room to others."""
        self.settle()
        self.copy, self._prefix, self._shared = None, (), 0
        # There is nothing left to be begun with.
        self.begun = True
        self._waits = _STEPS_WITHOUT if wait else self._waits

    def grow(self) -> None:
        """The slab gets more slots or cells: what all rows begin with is the same there."""
        self.settle()
        self.copy = None

    @property
    def kept_prefix(self) -> tuple[mx.array, ...]:
        """What is kept of what all rows begin with: keys and values, [1, kv_heads, tokens, dim]."""
        return self._prefix

    def stand_in(self, flat: mx.array, prefix: Sequence[mx.array]) -> "KeptFloats":
        """One that keeps the same, if a copy one of these floats [cells, dim], and this `prefix`,
        [1, kv_heads, tokens, dim] each; what it keeps more is its own."""
        other = copy(self)
        other.copy = None if self.copy is None else self.copy.stand_in(flat)
        other._prefix = tuple(prefix)
        return other

    def prefix(self, tokens: int) -> tuple[mx.array, ...]:
        """The first keys and values of the first slot, [1, kv_heads, tokens, dim]; or nothing."""
        return self._prefix if tokens == self._shared else ()

    def note_prefix(self, floats: tuple[mx.array, ...]) -> None:
        """Keep these keys and values, each [1, kv_heads, tokens, dim], if they are what all rows
        begin with."""
        tokens = floats[0].shape[2]
        if self.copy is None and tokens == self._shared and self._bytes_of(1, tokens):
            self._prefix = floats
