"""BatchQuantizedKVCache: one layer's keys and values of many sequences, quantized.

The verbs and their meaning are those of mlx-lm's batch caches; the geometry is a slot arena
(`kvactors.core.slots`): rows are left-aligned, nothing is padded on the left or rolled, and
rows join and leave without touching the others' bytes. Seed 001, 3.4; seed 003.

It is useful by itself: after `enable_in_mlx_lm()`, mlx-lm's own BatchGenerator runs on
quantized caches. All of it belongs to the thread that owns the arrays.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from kvactors.core.attention import attend, attend_together, install
from kvactors.core.errors import UnsupportedLayer
from kvactors.core.geometry import AttentionPolicy, StepGeometry
from kvactors.core.options import check_attention
from kvactors.core.pools import Pool, make_pool
from kvactors.core.slots import SlotTable
from kvactors.core.spec import LayerSpec

__all__ = ["BatchQuantizedKVCache", "enable_in_mlx_lm"]

# Slots are added in steps of so many: a join copies its row, a fourth one the slab.
SPARE_SLOTS = 4


class BatchQuantizedKVCache:
    """One layer of the slot arena. `bits` None stores float; the seam is the same.

    Alone it keeps its own bookkeeping and commits in `update_and_fetch`, as mlx-lm
    expects; in an `Arena` all layers share one table, which commits once per step.
    """

    def __init__(
        self,
        table: SlotTable,
        *,
        bits: int | None,
        group_size: int | None,
        layer: LayerSpec | None = None,
        policy: AttentionPolicy | None = None,
        shared: bool = False,
    ) -> None:
        self.table = table
        self.bits = bits
        self.group_size = group_size
        self.layer = layer
        self.policy = policy or _default_policy
        self.pools: list[Pool] = []
        self.geometry: StepGeometry | None = None
        self._shared = shared
        self._right_padding: list[int] | None = None

    # -- what models call ------------------------------------------------------------

    @property
    def offset(self) -> mx.array:
        """Tokens of each row, [B], int32: the position of its next token."""
        if self._shared and self.geometry is not None:
            return self.geometry.offset
        return mx.array(self.table.lengths)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Quantize [B, kv_heads, T, head_dim] and store it at each row's own position.

        Returns the cache itself twice: only the seam of `kvactors.core.attention` reads it.
        """
        if self.layer is None:
            self._materialize(keys)
        if not self._shared:
            self.geometry = StepGeometry(self.table, keys.shape[2])
            self.ensure(self.geometry)
        geometry = self.geometry
        assert geometry is not None, "a shared cache steps through its Arena"
        row = 0
        for pool, starts, at in zip(self.pools, geometry.starts, geometry.positions, strict=True):
            rows = slice(row, row + len(starts))
            pool.write(keys[rows], values[rows], starts, at)
            row += len(starts)
        if not self._shared:
            self.table.advance(geometry.width)
        return self, self

    def attend(self, queries: mx.array, *, scale: float, sinks: mx.array | None) -> mx.array:
        """Attention of [B, heads, T, head_dim] over what each row holds; same shape back."""
        if sinks is not None:
            raise UnsupportedLayer("attention sinks are not supported over a quantized cache")
        geometry, layer = self.geometry, self.layer
        assert geometry is not None
        assert layer is not None
        repeats = queries.shape[1] // layer.kv_heads
        packed = self.policy.packed(geometry.width, repeats)
        parts = []
        row = 0
        for index, pool in enumerate(self.pools):
            rows, extent = len(geometry.starts[index]), geometry.extents[index]
            asked, mask, shared = (
                queries[row : row + rows],
                geometry.masks[index],
                geometry.shared[index],
            )
            if shared and self.policy.together(rows, repeats):
                parts.append(attend_together(asked, pool, extent, shared, mask, scale, packed))
            else:
                parts.append(attend(asked, pool, extent, mask, scale, packed))
            row += rows
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)

    def make_mask(self, *_args: Any, **_kwargs: Any) -> None:
        """None: the cache decides how it is attended (seed 002, AttendSpec)."""

    # -- rows ------------------------------------------------------------------------

    @classmethod
    def merge(cls, caches: Sequence[Any]) -> "BatchQuantizedKVCache":
        """Batch mlx-lm QuantizedKVCache objects of one layer, empty ones included.

        The bytes are taken as they are. Raises ValueError if their bits, group sizes, heads,
        dimensions or dtypes differ.
        """
        kinds = {(cache.bits, cache.group_size) for cache in caches}
        if len(kinds) != 1:
            raise ValueError(f"cannot merge caches of different (bits, group_size): {kinds}")
        bits, group_size = kinds.pop()
        layers = {_layer_of(cache) for cache in caches if cache.keys is not None}
        if len(layers) > 1:
            raise ValueError(f"cannot merge caches of different layers: {layers}")
        batch = cls(SlotTable(), bits=bits, group_size=group_size)
        for cache in caches:
            length = 0 if cache.keys is None else cache.offset
            if length and batch.layer is None:
                batch._adopt(_layer_of(cache))
            row = batch.add_row(length, last=True)
            if length:
                batch.load_row(row, cache)
        return batch

    def extract(self, row: int) -> Any:
        """One row as mlx-lm's QuantizedKVCache, byte for byte."""
        from mlx_lm.models.cache import QuantizedKVCache

        cache = QuantizedKVCache(group_size=self.group_size or 64, bits=self.bits or 8)
        slab, slot = self.table.locate(row)
        length = self.table.lengths[row]
        if self.layer is None or length == 0:
            return cache
        arrays = list(self.pools[slab].export(slot, 0, length).values())
        cache.keys = tuple(mx.contiguous(array[0][None]) for array in arrays)
        cache.values = tuple(mx.contiguous(array[1][None]) for array in arrays)
        cache.offset = length
        mx.eval(cache.keys, cache.values)
        return cache

    def filter(self, batch_indices: Sequence[int]) -> None:
        """Keep these rows, in this order; only rows that move are copied."""
        keep = [int(index) for index in batch_indices]
        slots = self.table.plan_filter(keep)
        if self.pools:
            for pool, kept in zip(self.pools, slots, strict=True):
                if kept:
                    pool.gather(kept)
            self.pools = [pool for pool, kept in zip(self.pools, slots, strict=True) if kept]
        self.table.commit_filter(slots)

    def extend(self, other: "BatchQuantizedKVCache") -> None:
        """Append the other batch's rows at the end."""
        if self.layer is None and other.layer is not None:
            self._adopt(other.layer)
        for index, length in enumerate(other.table.lengths):
            row = self.add_row(length, last=True)
            if length:
                self.copy_row(row, other, index)

    def prepare(
        self,
        *,
        lengths: Sequence[int] | None = None,
        right_padding: Sequence[int] | None = None,
        left_padding: Sequence[int] | None = None,
    ) -> None:
        """Announce a right-padded prompt; `finalize` cuts the padding off again."""
        if left_padding is not None and any(left_padding):
            raise ValueError("rows are left-aligned: pad on the right")
        if right_padding is not None and max(right_padding) > 0:
            self._right_padding = list(right_padding)

    def finalize(self) -> None:
        """Cut the announced padding: its cells are overwritten by the next tokens."""
        for row, padding in enumerate(self._right_padding or []):
            self.table.set_length(row, self.table.lengths[row] - padding)
        self._right_padding = None

    def trim(self, n: int) -> int:
        """Drop up to n tokens from the end of every row; moves no bytes."""
        n = min([n, *self.table.lengths])
        for row, length in enumerate(self.table.lengths):
            self.table.set_length(row, length - n)
        return n

    def is_trimmable(self) -> bool:
        """True: full attention can be cut anywhere."""
        return True

    def size(self) -> int:
        """Tokens of the longest row."""
        return max(self.table.lengths, default=0)

    def empty(self) -> bool:
        """Whether no row holds a token."""
        return self.size() == 0

    @property
    def nbytes(self) -> int:
        """Bytes allocated, padding and spare slots included."""
        return sum(pool.nbytes for pool in self.pools)

    @property
    def state(self) -> list[list[mx.array]]:
        """Every array, for `mx.eval`."""
        return [list(pool.arrays.values()) for pool in self.pools]

    def keys_and_values(self) -> tuple[tuple[mx.array, ...], tuple[mx.array, ...]]:
        """Stored keys and values of the first slab, padded to its longest row."""
        rows, extent = len(self.table.slabs[0].lengths), max(self.table.slabs[0].lengths)
        return self.pools[0].keys(rows, extent), self.pools[0].values(rows, extent)

    # -- steps shared with the Arena ---------------------------------------------------

    def ensure(self, geometry: StepGeometry) -> None:
        """Allocate what a step needs."""
        for index, (slab, extent) in enumerate(
            zip(self.table.slabs, geometry.extents, strict=True)
        ):
            if extent > slab.capacity:
                capacity = self.table.capacity_for(slab.capacity, extent)
                if self.pools:
                    self.pools[index].resize(len(slab.lengths), capacity)
                if not self._shared:
                    slab.capacity = capacity

    def add_row(self, length: int, *, last: bool = False) -> int:
        """Make room for a row of `length` tokens; its bytes are loaded afterwards."""
        slab = self.table.choose_slab(length, last=last)
        capacity = self.grow(slab, length)
        return self.table.commit_join(slab, length, capacity)

    def shape_with(self, slab: int, length: int) -> tuple[int, int]:
        """(slots, capacity) of a slab once a row of `length` tokens has joined it."""
        if slab == len(self.table.slabs):
            return 1, self.table.capacity_for(0, length)
        rows = len(self.table.slabs[slab].lengths)
        slots = self.pools[slab].shape[0] if self.pools else rows
        if rows == slots:
            slots += 1 if self.table.lean else min(slots, SPARE_SLOTS)
        return slots, self.table.capacity_for(self.table.slabs[slab].capacity, length)

    def grow(self, slab: int, length: int) -> int:
        """Allocate one more slot in a slab, for at least `length` tokens; its capacity."""
        slots, capacity = self.shape_with(slab, length)
        if slab < len(self.pools):
            self.pools[slab].resize(slots, capacity)
        elif self.layer is not None:
            self.pools.append(make_pool(self.layer, slots, capacity))
        return capacity

    def copy_row(self, row: int, other: "BatchQuantizedKVCache", source: int) -> None:
        """Copy another batch's row into a row made by `add_row`."""
        slab, slot = other.table.locate(source)
        arrays = other.pools[slab].export(slot, 0, other.table.lengths[source])
        target, target_slot = self.table.locate(row)
        self.pools[target].load(target_slot, 0, arrays)
        mx.eval(self.pools[target].arrays)

    def load_row(self, row: int, cache: Any) -> None:
        """Take the bytes of an mlx-lm QuantizedKVCache into a row made by `add_row`."""
        slab, slot = self.table.locate(row)
        names = list(self.pools[slab].arrays)
        arrays = {
            name: mx.concatenate([key, value])[:, :, : cache.offset]
            for name, key, value in zip(names, cache.keys, cache.values, strict=True)
        }
        self.pools[slab].load(slot, 0, arrays)
        mx.eval(self.pools[slab].arrays)

    def _materialize(self, keys: mx.array) -> None:
        _, heads, _, dim = keys.shape
        dtype = str(keys.dtype).rpartition(".")[2]
        self._adopt(LayerSpec("full", heads, dim, self.bits, self.group_size, dtype))

    def _adopt(self, layer: LayerSpec) -> None:
        """Learn the geometry, and allocate the rows that joined empty before it was known."""
        self.layer = layer
        self.pools = [
            make_pool(layer, len(slab.lengths), slab.capacity) for slab in self.table.slabs
        ]


def _layer_of(cache: Any) -> LayerSpec:
    codes, scales, _ = cache.keys
    dim = codes.shape[-1] * 32 // cache.bits
    dtype = str(scales.dtype).rpartition(".")[2]
    return LayerSpec("full", codes.shape[1], dim, cache.bits, cache.group_size, dtype)


_default_policy = AttentionPolicy()


def enable_in_mlx_lm(attention: str = "auto") -> None:
    """Let mlx-lm batch its own QuantizedKVCache; before or after loading, once or often.

    Gives `QuantizedKVCache` the `merge` that mlx-lm's BatchGenerator looks for, and a true
    `size()`, and installs the attention seam. Raises InvalidConfig for an unknown path.
    """
    global _default_policy
    from mlx_lm.models.cache import QuantizedKVCache

    _default_policy = AttentionPolicy(check_attention(attention))
    QuantizedKVCache.merge = staticmethod(BatchQuantizedKVCache.merge)
    QuantizedKVCache.size = lambda self: self.offset
    install()
