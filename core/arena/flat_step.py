"""A flat step: rows of a batch take different numbers of tokens in one forward. GPU thread.

Every token is a row of width 1 of the model's batch, with its own position: what a model does token
by token costs what there is to do, without padding. Only attention sees rows: the queries of one
are folded together, those of fewer tokens padded with their last one. A row of 3 tokens beside two
of one, which stand behind 7, 4 and 9 others:

    batch of the model   0  1  2 | 3 | 4
    position             7  8  9 | 4 | 9
    queries of rows     [0, 1, 2], [3, 3, 3], [4, 4, 4]

With cells and masks of its own a row holds sequences or a tree [cache-family, 5.2, 5.3].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise

import mlx.core as mx
import numpy as np

from kvactors.core.arena.cells import Cells
from kvactors.core.arena.step import Reach, StepGeometry, ring_mask
from kvactors.core.cache.blocks import BLOCK_TOKENS
from kvactors.core.cache.slots import SlotTable
from kvactors.core.cache.spec import LayerSpec

__all__ = ["FlatRow", "FlatStep"]


@dataclass(frozen=True, slots=True)
class FlatRow:
    """New tokens of one row: their positions, and where those are not cells too, the cell that
    each is written in and which of the row's cells it sees, [tokens, cells] (true where it does;
    cells beyond are not seen)."""

    positions: Sequence[int]
    cells: Sequence[int] | None = None
    sees: np.ndarray | None = None

    @property
    def written(self) -> Sequence[int]:
        """The cell of each token."""
        return self.positions if self.cells is None else self.cells


class FlatStep(StepGeometry):
    """A step of the `rows` of `table`, at least one token of each, in the order of the batch; with
    `floats` there is memory to keep what codes say as floats."""

    def __init__(self, table: SlotTable, rows: Sequence[FlatRow], *, floats: bool = False) -> None:
        assert len(rows) == len(table)
        assert all(row.positions for row in rows), "a row takes no token"
        ends = [0, *accumulate(len(slab.rows) for slab in table.slabs)]
        self._held = [rows[begin:end] for begin, end in pairwise(ends)]
        starts = [[row.positions[0] for row in held] for held in self._held]
        extents = [table.extent(max(map(_end, held))) for held in self._held]
        super().__init__(starts, extents, floats=floats)
        self.bases = self.shared = [slab.trunk.end for slab in table.slabs]
        self.counts = [sum(len(row.positions) for row in held) for held in self._held]
        self.offset = mx.array([position for row in rows for position in row.positions])
        self._folds = [_Fold([len(row.positions) for row in held]) for held in self._held]

    @property
    def kept(self) -> Sequence[int | None]:
        """Those of its trunk; without one, what plain steps before it kept stays for those behind
        it."""
        return [tokens or None for tokens in self.shared]

    def folded(self, index: int, queries: mx.array) -> mx.array:
        """A slab's queries [B, heads, 1, dim] as those of its rows, [n, heads, T, dim], T being the
        most tokens of one."""
        return self._folds[index].fold(queries)

    def unfolded(self, index: int, attended: mx.array) -> mx.array:
        """The way back, of what `attended` [n, heads, T, dim] of slab `index`."""
        return self._folds[index].unfold(attended)

    def _reach(self, index: int, layer: LayerSpec) -> Reach:
        held, extent = self._held[index], self.extents[index]
        most = self._folds[index].most
        positions = mx.array([_padded(row.positions, most) for row in held])
        at = mx.array([cell for row in held for cell in row.written])[:, None]
        slots = [slot for slot, row in enumerate(held) for _ in row.positions]
        if layer.cells is None:
            own = Cells(at - self.bases[index], None, slots)
            return Reach(extent, own, partial(_mask, held, positions, extent))
        assert most <= BLOCK_TOKENS, "a ring has room for a block beside the window"
        assert all(row.sees is None for row in held), "a ring holds one sequence"
        extent = min(extent, layer.cells)
        mask = partial(ring_mask, positions, layer, extent)
        return Reach(extent, Cells(at % layer.cells, None, slots), mask)


class _Fold:
    """Which tokens of the model's batch are whose: rows of `counts` tokens."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.most = most = max(counts)
        begins = [0, *accumulate(counts)]
        self._gather = self._back = None
        if most > 1:
            places = [_padded(range(a, b), most) for a, b in pairwise(begins)]
            self._gather = mx.array(places)
            back = [row * most + t for row, count in enumerate(counts) for t in range(count)]
            self._back = mx.array(back)

    def fold(self, queries: mx.array) -> mx.array:
        if self._gather is None:
            return queries
        return queries[:, :, 0][self._gather].swapaxes(1, 2)

    def unfold(self, attended: mx.array) -> mx.array:
        if self._back is None:
            return attended
        return attended.swapaxes(1, 2).flatten(0, 1)[self._back][:, :, None]


def _end(row: FlatRow) -> int:
    """Cells of a row that a step reads."""
    end = max(row.written) + 1
    return end if row.sees is None else max(end, row.sees.shape[1])


def _padded(values: Sequence[int], most: int) -> list[int]:
    return [*values, *[values[-1]] * (most - len(values))]


def _mask(held: Sequence[FlatRow], positions: mx.array, extent: int) -> mx.array:
    """What the queries of rows see: boolean [n, 1, T, extent]."""
    if all(row.sees is None for row in held):
        return mx.arange(extent) <= positions[:, None, :, None]
    most = positions.shape[1]
    mask = np.zeros((len(held), 1, most, extent), bool)
    for slot, row in enumerate(held):
        if row.sees is None:
            mask[slot, 0] = np.arange(extent) <= np.array(_padded(row.positions, most))[:, None]
        else:
            mask[slot, 0, :, : row.sees.shape[1]] = row.sees[_padded(range(len(row.sees)), most)]
    return mx.array(mask)
