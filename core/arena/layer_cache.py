"""What an Arena asks of every kind of layer cache, and which of them a model has.

    begin     a step begins; the model steps the layer through `update_and_fetch` or items
    rows      the bytes of the layer's rows, slab by slab as the SlotTable says:
              `grow`, `copy_row`, `share`, `leave` batch them; `export` and `load` take them out and
              in, as tokens or as a checkpoint at the end of a turn; `cut` takes tokens back, as far
              as the kind allows

GPU thread only.
"""

import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any, Protocol

from mlx_lm.models.cache import CacheList, KVCache

from kvactors.core.arena.kv_layer import KVLayer
from kvactors.core.arena.recurrent_layer import StateLayer
from kvactors.core.arena.step import StepGeometry
from kvactors.core.attention.policy import AttentionPolicy
from kvactors.core.cache.slabs import NO_TRUNK, Trunk
from kvactors.core.cache.slots import SlotTable
from kvactors.core.cache.spec import UNUSED, LayerSpec, ModelCacheSpec
from kvactors.core.quant.codec import Arrays

__all__ = ["LayerCache", "LayerRows", "make_layers", "make_table", "nested"]


class LayerRows(Protocol):
    """The bytes of one layer's rows."""

    def grow(self, slab: int, length: int, trunk: Trunk = NO_TRUNK) -> None:
        """One more slot at the end of a slab, for at least `length` tokens; of a new slab, behind a
        `trunk`."""

    def join_growth(self, slab: int, length: int, trunk: Trunk = NO_TRUNK) -> tuple[int, int]:
        """Bytes of a slab now, without floats, and once a row of `length` tokens has joined it; of
        a new slab, behind a `trunk`."""

    def step_growth(self, slab: int, tokens: int) -> tuple[int, int]:
        """Bytes of a slab now, and once its rows have room for `tokens` tokens."""

    def shrink(self, slab: int, slots: int, capacity: int) -> None:
        """Give back what a `slab` has beyond so many `slots`, and `capacity` tokens in each."""

    def copy_row(self, row: int, other: Any, source: int) -> None:
        """Copy row `source` of this layer of an `other` arena into a `row` made by `grow`: lazy."""

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

    @property
    def known(self) -> bool:
        """Whether a step has shown how the model attends."""

    def begin(self, geometry: StepGeometry) -> None:
        """A step begins: allocate what it needs."""

    def reads_once(self, rows: int) -> bool:
        """Whether decode steps of so many rows are known to read a trunk once for all of them."""

    @property
    def float_bytes(self) -> int:
        """Bytes more that steps would take to keep what codes say as floats."""


def make_table(
    spec: ModelCacheSpec, policy: AttentionPolicy, max_slabs: int, extent_step: int
) -> SlotTable:
    """The table of an arena of a model of this `spec`, attended by this `policy`, with at most
    `max_slabs` and extents of `extent_step`."""
    if not spec.batched:
        # A slab for each row, and a step for each slab.
        return SlotTable(sys.maxsize, -1, extent_step)
    if spec.plain or spec.recurrent:
        # What these layers hand to the model is one array for the whole batch.
        max_slabs = 1
    return SlotTable(max_slabs, policy.launch_tokens, extent_step)


def make_layers(
    spec: ModelCacheSpec, table: SlotTable, policy: AttentionPolicy
) -> list[LayerCache]:
    """The layers that a `spec` lists, over rows of a `table`, attended by a `policy`."""
    places = {
        index: (number, place)
        for number, group in enumerate(spec.groups())
        for place, index in enumerate(group)
    }
    masks = spec.masks if spec.plain else None

    def make(index: int, layer: LayerSpec) -> LayerCache:
        if layer.kind == "recurrent":
            return StateLayer(table, layer)
        place = places[index]
        return KVLayer(table, layer, policy, place=place, masks=masks, batched=spec.batched)

    return [make(index, layer) for index, layer in enumerate(spec.layers)]


def nested(layers: Sequence[LayerCache], nesting: Sequence[int]) -> list[Any]:
    """The caches as the model wants them: some by themselves, some in lists."""
    if not any(nesting):
        return list(layers)
    left = iter(layers)
    kept = [count for count in nesting if count != UNUSED]
    wanted = iter(CacheList(*islice(left, count)) if count else next(left) for count in kept)
    return [KVCache() if count == UNUSED else next(wanted) for count in nesting]
