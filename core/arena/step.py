"""One step's geometry: where each row reads and writes. GPU thread."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import accumulate

import mlx.core as mx

from kvactors.core.arena.cells import Cells
from kvactors.core.cache.blocks import BLOCK_TOKENS
from kvactors.core.cache.slots import SlotTable
from kvactors.core.cache.spec import LayerSpec

__all__ = ["EvenStep", "Reach", "StepGeometry", "ring_mask"]


class Reach:
    """Where the layers of one window write in one slab, and what their queries see.

    `mask` is boolean [n, 1, T, extent]: position by position, since a window's cells are used in
    a ring. It is made when it is asked for: where all rows end before the same cell, `end`, they
    see all that is before it but what comes after themselves.
    """

    def __init__(
        self, extent: int, cells: Cells, mask: Callable[[], mx.array], end: int | None = None
    ) -> None:
        self.extent = extent
        self.cells = cells
        self.end = end
        self._make_mask = mask

    @cached_property
    def mask(self) -> mx.array:
        """[n, 1, T, extent], boolean."""
        return self._make_mask()


class StepGeometry(ABC):
    """Where one step reads and writes; shared by all layers. Of each slab that takes part:

    `starts` are the positions of its rows' first new tokens, `extents` the keys that are read,
    `shared` those that all of its rows begin with and that are read once, `bases` where the cells
    of their own begin, `counts` how many rows of the model's batch are its own. `offset` is the
    position of each of those, [B]; they are `width` tokens long. With `floats` there is memory to
    keep what codes say as floats; a `whole` one reads all of its extents, behind a mask, wherever
    its rows end.
    """

    def __init__(self, starts: list[list[int]], extents: list[int], *, floats: bool) -> None:
        self.width = 1
        self.floats = floats
        self.whole = False
        self.slabs = range(len(starts))
        self.starts = starts
        self.extents = extents
        self.shared = [0] * len(starts)
        self.bases = [0] * len(starts)
        self.counts = [len(rows) for rows in starts]
        self.offset = mx.array(0)
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
    def kept(self) -> Sequence[int | None]:
        """Of each slab, how many tokens that all of its rows begin with are kept as floats; None:
        as many as are."""
        return self.shared

    @property
    def rows(self) -> int:
        """Rows that take the step."""
        return sum(map(len, self.starts))

    def apart(self, rows: mx.array) -> Sequence[mx.array]:
        """An array of the model's batch, [B, ...], slab by slab."""
        if len(self.counts) == 1:
            return [rows]
        ends = list(accumulate(self.counts))
        return [rows[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

    def folded(self, index: int, queries: mx.array) -> mx.array:
        """A slab's queries of the model's batch, as those of its rows: [n, heads, T, dim]."""
        return queries

    def unfolded(self, index: int, attended: mx.array) -> mx.array:
        """The way back, of what `attended` [n, heads, T, dim] of slab `index`."""
        return attended

    def reaches(self, layer: LayerSpec) -> list[Reach]:
        """For each slab of the step, where a layer reads and writes."""
        if layer.window not in self._reaches:
            indices = range(len(self.starts))
            self._reaches[layer.window] = [self._reach(index, layer) for index in indices]
        return self._reaches[layer.window]

    @abstractmethod
    def _reach(self, index: int, layer: LayerSpec) -> Reach: ...


class EvenStep(StepGeometry):
    """A step of `width` tokens in each row of `table`.

    Row r writes at [start_r, start_r + width) and its query t sees the keys up to
    start_r + t. Three rows of lengths 2, 5, 3 in one slab, width 1: writes at 2, 5, 3;
    the mask shows 3, 6 and 4 keys of an extent of 64. A decode step reads the first `shared`
    keys of a slab once for all of its rows. Position p stands in cell p - base of its row, and of a
    layer that holds `cells` tokens of a row in cell p % cells.

    `slab` restricts the step to one slab: the others' rows stand still. `floats` and `whole` as
    above. With an `offset` [rows] the positions are its own, and `table` says how many rows there
    are and how far they reach: the graph is then that of all steps for which it says the same.
    """

    def __init__(
        self,
        table: SlotTable,
        width: int,
        slab: int | None = None,
        *,
        floats: bool = False,
        whole: bool = False,
        offset: mx.array | None = None,
    ) -> None:
        slabs = range(len(table.slabs)) if slab is None else range(slab, slab + 1)
        starts = [list(table.slabs[index].lengths) for index in slabs]
        extents = [table.extent(max(rows) + width) for rows in starts]
        super().__init__(starts, extents, floats=floats and width == 1)
        self.width, self.slabs = width, slabs
        self.bases = [table.slabs[index].trunk.end for index in slabs]
        if width == 1:
            self.shared = [table.shared(index) for index in slabs]
        elif len(table) > 1:
            self.shared = self.bases
        self.whole = whole
        self._known = offset is None
        if offset is None:
            offset = mx.array([start for rows in starts for start in rows])
        self.offset = offset

    def _reach(self, index: int, layer: LayerSpec) -> Reach:
        starts, extent = self.starts[index], self.extents[index]
        positions = self.apart(self.offset)[index][:, None]
        if self.width > 1:
            positions = positions + mx.arange(self.width)
        first = starts[0] if self._known and len(set(starts)) == 1 else None
        cells = layer.cells
        if cells is None:
            base, mask = self.bases[index], partial(_causal, positions, extent)
            at = Cells(positions - base, None if first is None else first - base)
            return Reach(extent, at, mask, None if first is None else first + self.width)
        assert self.width <= BLOCK_TOKENS, "a ring has room for a block beside the window"
        if first is not None:
            first = first % cells if first % cells + self.width <= cells else None
        extent = min(extent, cells)
        mask = partial(ring_mask, positions, layer, extent)
        return Reach(extent, Cells(positions % cells, first), mask)


def _causal(positions: mx.array, extent: int) -> mx.array:
    return mx.arange(extent) <= positions[:, None, :, None]


def ring_mask(positions: mx.array, layer: LayerSpec, extent: int) -> mx.array:
    """What queries at `positions` [n, T], the last of each row being its newest, see of the first
    `extent` cells of a `layer` with a window: boolean [n, 1, T, extent]."""
    cells, window = layer.cells, layer.window
    assert cells is not None
    assert window is not None
    queries = positions[:, None, :, None]
    # The newest position that a cell can hold: what is older was overwritten by it.
    newest = positions[:, -1:]
    held = newest - (newest - mx.arange(extent) + cells) % cells
    held = held[:, None, None]
    return (held >= 0) & (held <= queries) & (held > queries - window)
