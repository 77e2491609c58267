"""BatchQuantizedKVCache: one layer's keys and values of many sequences, quantized.

The idea is that of [paper, 3.4]; the verbs and their meaning are those of mlx-lm's batch caches;
the geometry is a slot arena (`kvactors.core.cache.slots`): rows are left-aligned, nothing is padded
on the left or rolled, and rows join and leave without touching the others' bytes.

It is useful by itself: after `enable_in_mlx_lm()`, mlx-lm's own BatchGenerator runs on
quantized caches. All of it belongs to the thread that owns the arrays.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from kvactors.core.arena.kv_layer import KVLayer
from kvactors.core.arena.kv_rows import KVRows
from kvactors.core.arena.step import EvenStep
from kvactors.core.attention.policy import AttentionPolicy, check_attention
from kvactors.core.attention.seam import install
from kvactors.core.cache.slots import SlotTable
from kvactors.core.cache.spec import LayerSpec, Side
from kvactors.core.errors import UnsupportedLayer

__all__ = ["BatchQuantizedKVCache", "enable_in_mlx_lm"]


class BatchQuantizedKVCache(KVLayer):
    """One layer by itself: it keeps its own bookkeeping, and commits in `update_and_fetch`, as
    mlx-lm expects. Its geometry is that of the first keys it sees."""

    def __init__(self, *, bits: int, group_size: int) -> None:
        unknown = LayerSpec("full", 0, 0, bits, group_size, "float32")
        super().__init__(SlotTable(), unknown, _default_policy)
        self.bits = bits
        self.group_size = group_size
        self._right_padding: list[int] | None = None

    @property
    def offset(self) -> mx.array:
        """Tokens of each row, [B], int32: the position of its next token."""
        return mx.array(self.table.lengths)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Quantize [B, kv_heads, T, head_dim] and store it at each row's own position.

        Returns the cache itself twice: only the seam of `kvactors.core.attention.attend` reads it.
        """
        if not self._known:
            self._materialize(keys, values)
        geometry = EvenStep(self.table, keys.shape[2])
        self.begin(geometry)
        for slab, extent in zip(self.table.slabs, geometry.extents, strict=True):
            slab.capacity = self.table.capacity_for(slab.capacity, extent)
        fetched = super().update_and_fetch(keys, values)
        self.table.advance(geometry.width)
        return fetched

    def make_mask(self, *args: Any, window_size: int | None = None, **_kwargs: Any) -> None:
        """None: the cache knows what the next tokens of each row, `args[0]` of them, see.

        Raises UnsupportedLayer where a row would see more than the `window_size` of its layer.
        """
        if window_size is not None and self.size() + args[0] > window_size:
            raise UnsupportedLayer(
                f"this layer sees the last {window_size} tokens and is given "
                f"{self.size() + args[0]} in a cache that shows all of them: make the caches of "
                "such layers with the model's own make_cache(), or run the model in kvactors, "
                "whose engine keeps windows"
            )

    @property
    def _known(self) -> bool:
        return self.layer.kv_heads > 0

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
        batch = cls(bits=bits, group_size=group_size)
        for cache in caches:
            length = 0 if cache.keys is None else cache.offset
            if length and not batch._known:
                batch._adopt(_layer_of(cache))
            row = batch.add_row(length, last=True)
            if length:
                batch.load_row(row, cache)
        return batch

    def extract(self, row: int) -> Any:
        """One row as mlx-lm's QuantizedKVCache, byte for byte."""
        from mlx_lm.models.cache import QuantizedKVCache

        cache = QuantizedKVCache(group_size=self.group_size, bits=self.bits)
        slab, slot = self.table.locate(row)
        length = self.table.lengths[row]
        if not self._known or length == 0:
            return cache
        stored = self.rows.pools[slab].read(slot + 1, length).rows(slice(slot, slot + 1))
        cache.keys = tuple(mx.contiguous(array[0, ...]) for array in stored.keys)
        cache.values = tuple(mx.contiguous(array[0, ...]) for array in stored.values)
        cache.offset = length
        mx.eval(cache.keys, cache.values)
        return cache

    def filter(self, batch_indices: Sequence[int]) -> None:
        """Keep these rows, in this order; only rows that move are copied."""
        keep = [int(index) for index in batch_indices]
        slots = self.table.plan_filter(keep)
        if self._known:
            self.rows.keep(slots)
        self.table.commit_filter(slots)

    def extend(self, other: "BatchQuantizedKVCache") -> None:
        """Append the other batch's rows at the end."""
        if not self._known and other._known:
            self._adopt(other.layer)
        for index, length in enumerate(other.table.lengths):
            row = self.add_row(length, last=True)
            if length:
                self.rows.copy_row(row, other.rows, index)
        mx.eval(self.rows.state)

    def prepare(
        self,
        *,
        lengths: Sequence[int] | None = None,
        right_padding: Sequence[int] | None = None,
        left_padding: Sequence[int] | None = None,
    ) -> None:
        """Announce a prompt of these `lengths`, padded by `right_padding`, which `finalize` cuts
        off again. Raises ValueError for a `left_padding`."""
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

    def add_row(self, length: int, *, last: bool = False) -> int:
        """Make room for a row of `length` tokens; its bytes are loaded afterwards."""
        slab = self.table.choose_slab(length, last=last)
        if self._known:
            self.rows.grow(slab, length)
        held = self.table.slabs[slab].capacity if slab < len(self.table.slabs) else 0
        return self.table.commit_join(slab, length, self.table.capacity_for(held, length))

    def load_row(self, row: int, cache: Any) -> None:
        """Take the bytes of an mlx-lm QuantizedKVCache into a row made by `add_row`."""
        slab, slot = self.table.locate(row)
        pool, names = self.rows.pools[slab], ("codes", "scales", "biases")
        sides = zip(names, cache.keys, cache.values, strict=True)
        if "codes" in pool.arrays:
            arrays = {name: mx.concatenate([key, value]) for name, key, value in sides}
        else:
            arrays = {
                f"{p}.{name}": a for name, *kv in sides for p, a in zip("kv", kv, strict=True)
            }
        pool.load(slot, 0, {name: array[:, :, : cache.offset] for name, array in arrays.items()})
        mx.eval(pool.arrays)

    def _materialize(self, keys: mx.array, values: mx.array) -> None:
        dtype = str(keys.dtype).rpartition(".")[2]
        dims = keys.shape[-1], values.shape[-1]
        self._adopt(_layer(keys.shape[1], dims, self.bits, self.group_size, dtype))

    def _adopt(self, layer: LayerSpec) -> None:
        """Learn the geometry, and allocate the rows that joined empty before it was known."""
        self.layer = layer
        self.rows = KVRows(self.table, layer)


def _layer_of(cache: Any) -> LayerSpec:
    (codes, scales, _), (value_codes, _, _) = cache.keys, cache.values
    dims = [array.shape[-1] * 32 // cache.bits for array in (codes, value_codes)]
    dtype = str(scales.dtype).rpartition(".")[2]
    return _layer(codes.shape[1], dims, cache.bits, cache.group_size, dtype)


def _layer(heads: int, dims: Sequence[int], bits: int, group_size: int, dtype: str) -> LayerSpec:
    keys, values = (Side(dim, bits, group_size) for dim in dims)
    differ = None if keys == values else values
    return LayerSpec("full", heads, keys.dim, bits, group_size, dtype, differ)


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
