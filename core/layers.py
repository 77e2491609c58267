"""One layer's cache of the rows that run together: what an Arena asks of every kind.

    batch     `grow`, `copy_row`, `share`, `leave`; the model steps it through `update_and_fetch`
              or items
    persist   `export`, `load`: tokens, or a checkpoint at the end of a turn
    cut       `cut`: back by some tokens, as far as the kind allows

Rows stand slab by slab as the SlotTable says; the layers hold their bytes. GPU thread only.
"""

import sys
from copy import copy
from typing import Any, Protocol

import mlx.core as mx

from kvactors.core.attention import attend, attend_together
from kvactors.core.errors import UnsupportedLayer
from kvactors.core.geometry import AttentionPolicy, StepGeometry
from kvactors.core.pools import Arrays, Pool, Stored, to_float
from kvactors.core.slots import SlotTable
from kvactors.core.spec import LayerSpec, Side

__all__ = ["KVLayer", "LayerCache"]

# Slots are added in steps of so many: a join copies its row, a fourth one the slab.
SPARE_SLOTS = 4


class LayerCache(Protocol):
    """What every kind of layer cache offers to the Arena."""

    geometry: StepGeometry | None

    def begin(self, geometry: StepGeometry) -> None:
        """A step begins: allocate what it needs."""

    def grow(self, slab: int, length: int) -> None:
        """One more slot at the end of a slab, for at least `length` tokens."""

    def join_growth(self, slab: int, length: int) -> tuple[int, int]:
        """Bytes of a slab now, without floats, and once a row of `length` tokens has joined it."""

    def step_growth(self, slab: int, tokens: int) -> tuple[int, int]:
        """Bytes of a slab now, and once its rows have room for `tokens` tokens."""

    def shrink(self, slab: int, slots: int, capacity: int) -> None:
        """Give back what is beyond so many slots, and tokens in each."""

    def copy_row(self, row: int, other: Any, source: int) -> None:
        """Copy another arena's row, of this layer, into a row made by `grow`."""

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
        """Store what was exported."""

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""

    @property
    def float_bytes(self) -> int:
        """Bytes more that steps would take to keep what codes say as floats."""

    @property
    def state(self) -> list[Any]:
        """Every array, for `mx.eval`."""


class KVLayer:
    """Keys and values of full or sliding attention, quantized or float, in one pool per slab.

    Attention goes through the seam, or, where the model's own is `plain`, over float arrays and
    a mask of the form `masks` that fits them.
    """

    def __init__(
        self,
        table: SlotTable,
        layer: LayerSpec,
        policy: AttentionPolicy,
        *,
        masks: str | None = None,
        batched: bool = True,
    ) -> None:
        self.table = table
        self.layer = layer
        self.policy = policy
        self.pools: list[Pool] = []
        self.geometry: StepGeometry | None = None
        # Some models tie these into their graph, so that the cache is evaluated with it.
        self.keys = self.values = mx.zeros(())
        self._masks = masks
        self._batched = batched
        # Query heads per KV head: too many for floats until the first step shows it.
        self._repeats = sys.maxsize

    # -- what models call ------------------------------------------------------------

    # Of mlx-lm's chunked cache: the position of its first token, which never leaves here.
    start_position = 0

    def maybe_trim_front(self) -> None:
        """Nothing: what a query sees is in the model's mask."""

    @property
    def offset(self) -> Any:
        """The position of each row's next token, [B], int32; an int where rows run alone."""
        if self.geometry is None:
            return mx.array(self.table.lengths)
        return self.geometry.offset if self._batched else self.geometry.starts[0][0]

    @property
    def dtype(self) -> Any:
        """What attention returns: models ask it of what `update_and_fetch` gave them."""
        return getattr(mx, self.layer.dtype)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Store [B, kv_heads, T, dim] at each row's own position.

        Returns the cache itself twice, which only the seam of `kvactors.core.attention` can
        read; or, where attention is plain, float arrays padded to the longest row.
        """
        geometry = self.geometry
        assert geometry is not None, "a layer steps through its Arena"
        new = zip(geometry.apart(keys), geometry.apart(values), strict=True)
        reaches = geometry.reaches(self.layer)
        for slab, (keys, values), reach in zip(geometry.slabs, new, reaches, strict=True):
            self.pools[slab].write(keys, values, reach.cells)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[Any, Any]:
        """What `update_and_fetch` returned last, for a layer that shares this one's."""
        return self._floats() if self.layer.plain else (self, self)

    def attend(
        self, queries: mx.array, mask: Any, *, scale: float, sinks: mx.array | None
    ) -> mx.array:
        """Attention of [B, heads, T, head_dim] over what each row holds; [..., value_dim].

        `mask` is the model's: only one that a cache of this step made says no more than the
        cache knows. Raises UnsupportedLayer for another, such as of chosen keys.
        """
        geometry, layer = self.geometry, self.layer
        assert geometry is not None
        if isinstance(mask, mx.array) and not geometry.made(mask):
            raise UnsupportedLayer(
                f"attention of a {layer.kind} layer was given a mask of the model's own, which it "
                "did not show at load: it would need the layer's keys as floats"
            )
        self._repeats = repeats = queries.shape[1] // layer.kv_heads
        unpack = self.policy.unpacks(geometry.width, repeats)
        packed = unpack or self.policy.packed(geometry.width, repeats)
        parts = []
        for index, asked in enumerate(geometry.apart(queries)):
            pool, shared = self.pools[geometry.slabs[index]], geometry.shared[index]
            reach = geometry.reaches(layer)[index]
            alike = shared and layer.window is None and sinks is None
            if alike and self.policy.together(len(asked), repeats):
                part = attend_together(
                    asked, pool, reach.extent, shared, reach.mask, scale, packed, unpack
                )
            else:
                part = attend(asked, pool, reach.extent, reach.mask, scale, packed, sinks, unpack)
            parts.append(part)
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)

    def make_mask(self, *_args: Any, return_array: bool = False, **_kwargs: Any) -> Any:
        """None where the cache decides how it is attended (seed 002, AttendSpec)."""
        if self._masks is None:
            return None
        geometry = self.geometry
        assert geometry is not None
        if not self._batched:
            # As mlx-lm's own: a single query that sees every key needs none, even if asked for.
            if self.layer.window is None and geometry.width == 1:
                return None
            if self.layer.window is None and not return_array:
                return "causal"
            # [T, keys]: any shape of scores takes it.
            mask = geometry.reaches(self.layer)[0].mask[0, 0, :, : self._held(geometry)]
            return geometry.note(mask)
        mask = geometry.reaches(self.layer)[0].mask
        if self._masks == "groups":
            mask = mask[:, :, None]
        elif self._masks == "added":
            dtype = getattr(mx, self.layer.dtype)
            mask = mx.where(mask, 0.0, mx.finfo(dtype).min).astype(dtype)
        return geometry.note(mask)

    def _held(self, geometry: StepGeometry) -> int:
        """Cells that a row which runs alone has filled after this step."""
        end = geometry.starts[0][0] + geometry.width
        return end if self.layer.cells is None else min(end, self.layer.cells)

    def _floats(self) -> tuple[mx.array, mx.array]:
        geometry = self.geometry
        assert geometry is not None
        (slab,) = geometry.slabs
        extent = geometry.reaches(self.layer)[0].extent
        if not self._batched:
            extent = self._held(geometry)
        rows, (keys, values) = geometry.rows, self.layer.sides
        return (
            self._plain(self.pools[slab].keys(rows, extent), keys, rows, extent),
            self._plain(self.pools[slab].values(rows, extent), values, rows, extent),
        )

    def _plain(self, stored: Stored, side: Side, rows: int, extent: int) -> mx.array:
        dtype = getattr(mx, self.layer.dtype)
        if side.dim == 0:
            return mx.zeros((rows, self.layer.kv_heads, extent, 0), dtype)
        return to_float(stored, side)[0].astype(dtype)

    # -- rows ------------------------------------------------------------------------

    def begin(self, geometry: StepGeometry) -> None:
        """A step begins: allocate what it needs."""
        self.geometry = geometry
        for index, slab in enumerate(geometry.slabs):
            pool = self.pools[slab]
            capacity = self._capacity(self.table.slabs[slab].capacity, geometry.extents[index])
            grows = capacity > pool.shape[1]
            if grows:
                pool.resize(len(self.table.slabs[slab].lengths), capacity)
            # There was memory for floats of what it was.
            memory = geometry.floats and not grows
            pool.keep_floats(memory and self._wants_floats, geometry.shared[index])

    @property
    def _wants_floats(self) -> bool:
        return not self.layer.plain and self.policy.unpacks(1, self._repeats)

    def grow(self, slab: int, length: int) -> None:
        """One more slot at the end of a slab, for at least `length` tokens."""
        slots, capacity = self._shape_with(slab, length)
        if slab < len(self.pools):
            self.pools[slab].resize(slots, capacity)
        else:
            self.pools.append(Pool(self.layer, slots, capacity))

    def join_growth(self, slab: int, length: int) -> tuple[int, int]:
        """Bytes of a slab now, and once a row of `length` tokens has joined it."""
        before = self.pools[slab].stored_bytes if slab < len(self.pools) else 0
        slots, capacity = self._shape_with(slab, length)
        return before, slots * capacity * self.layer.bytes_per_token()

    def step_growth(self, slab: int, tokens: int) -> tuple[int, int]:
        """Bytes of a slab now, and once its rows have room for `tokens` tokens."""
        capacity = self._capacity(self.table.slabs[slab].capacity, tokens)
        slots = self.pools[slab].shape[0]
        return self.pools[slab].stored_bytes, slots * capacity * self.layer.bytes_per_token()

    def shrink(self, slab: int, slots: int, capacity: int) -> None:
        """Give back what is beyond so many slots, and tokens in each."""
        self.pools[slab].give_way(slots, self._bounded(capacity))

    def copy_row(self, row: int, other: "KVLayer", source: int) -> None:
        """Copy another arena's row, of this layer, into a row made by `grow`."""
        slab, slot = other.table.locate(source)
        cells = other._bounded(other.table.lengths[source])
        arrays = other.pools[slab].export(slot, 0, cells)
        target, target_slot = self.table.locate(row)
        self.pools[target].load(target_slot, 0, arrays)
        mx.eval(self.pools[target].arrays)

    def share(self, other: "KVLayer", slab: int) -> None:
        """One more slab: another arena's, of this layer. Whoever writes first copies it, unless
        the other one is gone."""
        pool = copy(other.pools[slab])
        # Rows that left may have left their slots.
        pool.shrink(1, pool.shape[1])
        self.pools.append(pool)

    def leave(self, slab: int, slot: int, last: int) -> None:
        """Remove a slot; the slab's last one fills the hole."""
        if slot != last:
            self.pools[slab].move(slot, last)
        elif last == 0:
            del self.pools[slab]

    def cut(self, row: int, length: int) -> None:
        """Moves no bytes: what is beyond `length` is overwritten by the next tokens."""

    def export(self, row: int, start: int, end: int, *, checkpoint: bool) -> Arrays:
        """Tokens [start, end) of a row; of a window its last tokens, if a checkpoint is asked."""
        slab, slot = self.table.locate(row)
        window, cells = self.layer.window, self.layer.cells
        if window is None or cells is None:
            return self.pools[slab].export(slot, start, end)
        if not checkpoint:
            return {}
        at = mx.arange(max(0, end - window), end) % cells
        return {name: array[:, slot][:, :, at] for name, array in self.pools[slab].arrays.items()}

    def load(self, row: int, start: int, end: int, arrays: Arrays) -> None:
        """Store what was exported."""
        slab, slot = self.table.locate(row)
        cells = self.layer.cells
        if cells is None:
            self.pools[slab].load(slot, start, arrays)
            return
        tokens = next(iter(arrays.values())).shape[2]
        self.pools[slab].put(slot, mx.arange(end - tokens, end) % cells, arrays)

    @property
    def nbytes(self) -> int:
        """Bytes allocated, padding and spare slots included."""
        return sum(pool.nbytes for pool in self.pools)

    @property
    def float_bytes(self) -> int:
        """Bytes more that steps would take to keep what codes say as floats."""
        slabs = range(len(self.pools) if self._wants_floats else 0)
        return sum(self.pools[slab].float_bytes(self.table.shared(slab)) for slab in slabs)

    @property
    def state(self) -> list[Any]:
        """Every array, for `mx.eval`."""
        return [list(pool.arrays.values()) for pool in self.pools]

    def _bounded(self, tokens: int) -> int:
        return tokens if self.layer.cells is None else min(tokens, self.layer.cells)

    def _capacity(self, current: int, tokens: int) -> int:
        """Cells of a slab of `current` tokens that must hold `tokens` in each row."""
        return self._bounded(self.table.capacity_for(current, tokens))

    def _shape_with(self, slab: int, length: int) -> tuple[int, int]:
        """(slots, capacity) of a slab once a row of `length` tokens has joined it."""
        if slab == len(self.table.slabs):
            return 1, self._capacity(0, length)
        rows = len(self.table.slabs[slab].lengths)
        slots = self.pools[slab].shape[0] if self.pools else rows
        if rows == slots:
            slots += 1 if self.table.lean else min(slots, SPARE_SLOTS)
        return slots, self._capacity(self.table.slabs[slab].capacity, length)
