"""One step's geometry: where each row reads and writes, and which attention path it takes."""

from dataclasses import dataclass

import mlx.core as mx

from kvactors.core.attention import DEFAULT_THRESHOLD
from kvactors.core.options import AttentionMode
from kvactors.core.slots import SlotTable

__all__ = ["REPRODUCIBLE_STEP", "AttentionPolicy", "StepGeometry"]

REPRODUCIBLE_STEP = 256


@dataclass(frozen=True, slots=True)
class AttentionPolicy:
    """Which path a step takes. `threshold` counts query rows per KV head, `launch_tokens` the
    padding that one more slab is worth; both are measured at load.

    `reproducible` decides by position instead of by measurement: whole blocks of 256
    tokens take the dequantizing path, everything else the packed one.
    """

    mode: AttentionMode = "auto"
    threshold: int = DEFAULT_THRESHOLD
    reproducible: bool = False
    launch_tokens: int = 1024

    @property
    def cascades(self) -> bool:
        """Whether rows that begin alike may be attended together: their sums then depend on the
        company, which the packed path and reproducible runs exclude."""
        return self.mode != "packed" and not self.reproducible

    def packed(self, width: int, repeats: int) -> bool:
        """Whether a step of `width` tokens, `repeats` query heads per KV head, is packed."""
        if self.mode != "auto":
            return self.mode == "packed"
        if self.reproducible:
            return width != REPRODUCIBLE_STEP
        return width * repeats <= self.threshold

    def together(self, rows: int, repeats: int) -> bool:
        """Whether a decode step attends what `rows` share as one: with twice the queries from
        which floats are faster, since taking the parts together costs too (bench/LOG.md)."""
        return not self.packed(1, rows * repeats // 2)


class StepGeometry:
    """Where one step of `width` tokens per row reads and writes; shared by all layers.

    Row r writes at [start_r, start_r + width) and its query t sees the keys up to
    start_r + t. Three rows of lengths 2, 5, 3 in one slab, width 1: writes at 2, 5, 3;
    the mask shows 3, 6 and 4 keys of an extent of 64. A decode step reads the first `shared`
    keys of a slab once for all of its rows.
    """

    def __init__(self, table: SlotTable, width: int) -> None:
        self.width = width
        self.starts = [list(slab.lengths) for slab in table.slabs]
        self.extents = [table.extent(max(starts) + width) for starts in self.starts]
        self.shared = [table.shared(slab) if width == 1 else 0 for slab in range(len(table.slabs))]
        self.offset = mx.array([start for starts in self.starts for start in starts])
        self.positions: list[mx.array] = []
        self.masks: list[mx.array] = []
        row = 0
        for starts, extent in zip(self.starts, self.extents, strict=True):
            offset = self.offset[row : row + len(starts)]
            at = offset[:, None] + mx.arange(width)
            self.positions.append(at)
            self.masks.append(mx.arange(extent) <= at[:, None, :, None])
            row += len(starts)
