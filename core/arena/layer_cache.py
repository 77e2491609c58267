"""What an Arena asks of every kind of layer cache.

    begin     a step begins; the model steps the layer through `update_and_fetch` or items
    rows      the bytes of the layer's rows, slab by slab as the SlotTable says:
              `grow`, `copy_row`, `share`, `leave` batch them; `export` and `load` take them out and
              in, as tokens or as a checkpoint at the end of a turn; `cut` takes tokens back, as far
              as the kind allows

GPU thread only.
"""

from typing import Any, Protocol

from kvactors.core.arena.step import StepGeometry
from kvactors.core.quant.codec import Arrays

__all__ = ["LayerCache", "LayerRows"]


class LayerRows(Protocol):
    """The bytes of one layer's rows."""

    def grow(self, slab: int, length: int) -> None:
        """One more slot at the end of a slab, for at least `length` tokens."""

    def join_growth(self, slab: int, length: int) -> tuple[int, int]:
        """Bytes of a slab now, without floats, and once a row of `length` tokens has joined it."""

    def step_growth(self, slab: int, tokens: int) -> tuple[int, int]:
        """Bytes of a slab now, and once its rows have room for `tokens` tokens."""

    def shrink(self, slab: int, slots: int, capacity: int) -> None:
        """Give back what a `slab` has beyond so many `slots`, and `capacity` tokens in each."""

    def copy_row(self, row: int, other: Any, source: int) -> None:
        """Copy row `source` of this layer of an `other` arena into a `row` made by `grow`."""

    def share(self, other: Any, slab: int) -> None:
        """One more slab: another arena's, of this layer. Whoever writes first copies it, unless
        the other one is gone."""

    def leave(self, slab: int, slot: int, last: int) -> None:
        """Remove a slot; the slab's last one fills the hole."""

    def cut(self, row: int, length: int) -> None:
        """The row is about to be cut to `length` tokens."""

    def export(self, row: int, start: int, end: int, *, checkpoint: bool) -> Arrays:
        """Tokens [start, end) of a row, or its checkpoint at `end` if one is asked for; lazy."""

    def load(self, row: int, start: int, end: int, arrays: Arrays) -> None:
        """Store what was exported of tokens [start, end) in `row`; `arrays` by name."""

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""

    @property
    def state(self) -> list[Any]:
        """Every array, for `mx.eval`."""


class LayerCache(Protocol):
    """What a model steps, and the rows that it steps over."""

    geometry: StepGeometry | None

    @property
    def rows(self) -> LayerRows:
        """The bytes of the rows that run together."""

    def begin(self, geometry: StepGeometry) -> None:
        """A step begins: allocate what it needs."""

    @property
    def float_bytes(self) -> int:
        """Bytes more that steps would take to keep what codes say as floats."""
