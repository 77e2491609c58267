"""One step's geometry: where each row reads and writes, and which attention path it takes."""

from dataclasses import dataclass

import mlx.core as mx

from kvactors.core.attention import DEFAULT_THRESHOLD
from kvactors.core.options import AttentionMode
from kvactors.core.pools import Places
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

    def packed(self, width: int, repeats: int) -> bool:
        """Whether a step of `width` tokens, `repeats` query heads per KV head, is packed."""
        if self.mode != "auto":
            return self.mode == "packed"
        if self.reproducible:
            return width != REPRODUCIBLE_STEP
        return width * repeats <= self.threshold


class StepGeometry:
    """Where one step of `width` tokens per row reads and writes; shared by all layers.

    Row r writes at [start_r, start_r + width) and its query t sees the keys up to
    start_r + t. Three rows of lengths 2, 5, 3 in one slab, width 1: writes at 2, 5, 3;
    the mask shows 3, 6 and 4 keys of an extent of 64.
    """

    def __init__(self, table: SlotTable, width: int) -> None:
        self.width = width
        self.starts = [list(slab.lengths) for slab in table.slabs]
        self.extents = [table.extent(max(starts) + width) for starts in self.starts]
        self.offset = mx.array([start for starts in self.starts for start in starts])
        self.places = [Places(starts, width) for starts in self.starts]
        self.masks: list[mx.array] = []
        row = 0
        for starts, extent in zip(self.starts, self.extents, strict=True):
            offset = self.offset[row : row + len(starts)]
            at = offset[:, None] + mx.arange(width)
            self.masks.append(mx.arange(extent) <= at[:, None, :, None])
            row += len(starts)
