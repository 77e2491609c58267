"""One step's geometry: where each row reads and writes. GPU thread."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import mlx.core as mx

from kvactors.core.arena.cells import Cells
from kvactors.core.cache.blocks import BLOCK_TOKENS
from kvactors.core.cache.slots import SlotTable
from kvactors.core.cache.spec import LayerSpec

__all__ = ["Reach", "StepGeometry"]


@dataclass(frozen=True, slots=True)
class Reach:
    """Where the layers of one window write in one slab, and what their queries see.

    `mask` is boolean [n, 1, T, extent]: position by position, since a window's cells are used in
    a ring.
    """

    extent: int
    cells: Cells
    mask: mx.array


class StepGeometry:
    """Where one step of `width` tokens per row of `table` reads and writes; shared by all layers.

    Row r writes at [start_r, start_r + width) and its query t sees the keys up to
    start_r + t. Three rows of lengths 2, 5, 3 in one slab, width 1: writes at 2, 5, 3;
    the mask shows 3, 6 and 4 keys of an extent of 64. A decode step reads the first `shared`
    keys of a slab once for all of its rows. Position p of a layer that holds `cells` tokens of
    a row stands in cell p % cells.

    `slab` restricts the step to one slab: the others' rows stand still. With `floats` there is
    memory to keep what codes say as floats.
    """

    def __init__(
        self, table: SlotTable, width: int, slab: int | None = None, *, floats: bool = False
    ) -> None:
        self.width = width
        self.floats = floats and width == 1
        self.slabs = range(len(table.slabs)) if slab is None else range(slab, slab + 1)
        self.starts = [list(table.slabs[index].lengths) for index in self.slabs]
        self.extents = [table.extent(max(starts) + width) for starts in self.starts]
        self.shared = [table.shared(index) if width == 1 else 0 for index in self.slabs]
        self.offset = mx.array([start for starts in self.starts for start in starts])
        self._reaches: dict[int | None, list[Reach]] = {}
        self._masks: list[mx.array] = []

    def note(self, mask: mx.array) -> mx.array:
        """A cache gives this mask, [..., T, keys], to the model."""
        self._masks.append(mask)
        return mask

    def made(self, mask: mx.array) -> bool:
        """Whether a cache gave this very mask, [..., T, keys], in this step."""
        return any(mask is one for one in self._masks)

    @property
    def rows(self) -> int:
        """Rows that take the step."""
        return sum(map(len, self.starts))

    def apart(self, rows: mx.array) -> Sequence[mx.array]:
        """An array of all rows, [B, ...], slab by slab: [rows of the slab, ...] each."""
        if len(self.starts) == 1:
            return [rows]
        ends = list(accumulate(map(len, self.starts)))
        return [rows[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

    def reaches(self, layer: LayerSpec) -> list[Reach]:
        """For each slab of the step, where a layer reads and writes."""
        if layer.window not in self._reaches:
            self._reaches[layer.window] = [
                self._reach(starts, extent, layer)
                for starts, extent in zip(self.starts, self.extents, strict=True)
            ]
        return self._reaches[layer.window]

    def _reach(self, starts: list[int], extent: int, layer: LayerSpec) -> Reach:
        positions = mx.array(starts)[:, None] + mx.arange(self.width)
        queries = positions[:, None, :, None]
        first = starts[0] if len(set(starts)) == 1 else None
        cells, window = layer.cells, layer.window
        if cells is None or window is None:
            return Reach(extent, Cells(positions, first), mx.arange(extent) <= queries)
        assert self.width <= BLOCK_TOKENS, "a ring has room for a block beside the window"
        extent = min(extent, cells)
        if first is not None:
            first = first % cells if first % cells + self.width <= cells else None
        # The newest position that a cell can hold: what is older was overwritten by it.
        newest = positions[:, -1:]
        held = newest - (newest - mx.arange(extent) + cells) % cells
        held = held[:, None, None]
        mask = (held >= 0) & (held <= queries) & (held > queries - window)
        return Reach(extent, Cells(positions % cells, first), mask)
