"""The one attention seam: how queries meet a cache of ours.

mlx-lm's models call `scaled_dot_product_attention` by a name in their own module.
`install()` replaces that name everywhere; calls with other caches pass through unchanged.

Two paths over the stored codes, both with float32 scores, softmax and sums whatever the
model's dtype (in half precision they disagree enough to change tokens):

- packed: `mx.quantized_matmul` on the codes, no float copy. For few queries. On the CPU, unless
  the path is pinned, products of few queries take the codes as floats, and decode steps of many
  scores two cores.
- dequantize: this layer's keys and values in float32, transiently, and fused attention, on the
  CPU block by block. For prefill chunks; several times faster there.

The packed path is exact by row: a row's result does not depend on its neighbours, on the
padding, or on how many queries are asked at once. Rows that begin alike may ask the keys they
share as one row does, on the second path. Seed 000, 3.2; seed 002, AttendSpec.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from kvactors.core.blockwise import attend_in_blocks, on_cpu
from kvactors.core.packed import LOG2_E, attend_packed, exponentials, many_scores, score, weigh
from kvactors.core.pools import Pool, Stored, to_float
from kvactors.core.spec import LayerSpec
from kvactors.core.unpacking import PRECISION

__all__ = [
    "DEFAULT_THRESHOLD",
    "attend",
    "attend_together",
    "install",
    "watch_calls",
]

# Query rows per KV head up to which packed is the faster path, until measured: on the CPU
# (2 cores, OpenBLAS) the paths cross between 4 and 8 (bench/LOG.md).
DEFAULT_THRESHOLD = 4

_NAME = "scaled_dot_product_attention"


def attend(
    queries: mx.array,
    pool: Pool,
    extent: int,
    mask: mx.array | None,
    scale: float,
    packed: bool,
    sinks: mx.array | None = None,
    unpack: bool = False,
) -> mx.array:
    """Attention of [n, heads, T, head_dim] queries over one slab's first n rows.

    `mask` is boolean [n, 1, T, extent], true where a query sees a key; None sees all. `sinks`
    [heads] are scores that take weight and have no value. `unpack` lets the packed path take
    products from the codes as floats, where that is faster. Returns [n, heads, T, value_dim] in
    the queries' dtype.
    """
    rows = queries.shape[0]
    keys = pool.keys(rows, extent, floats=unpack)
    values = pool.values(rows, extent, floats=unpack)
    if packed:
        return attend_packed(queries, keys, values, pool.layer, mask, scale, sinks, unpack)
    return _dequantized(queries, keys, values, pool.layer, mask, scale, sinks)


def attend_together(
    queries: mx.array,
    pool: Pool,
    extent: int,
    shared: int,
    mask: mx.array,
    scale: float,
    packed: bool,
    unpack: bool = False,
) -> mx.array:
    """`attend` of one query a row, where all rows hold the same first `shared` keys, and more.

    Those are read once, as floats, from the first slot: the queries of all rows are one
    product. Each row's own keys follow, on either path; the two parts are joined through
    their maxima and sums (cascade attention).
    """
    rows, layer = queries.shape[0], pool.layer
    key_side, value_side = layer.sides
    keys, values = pool.beginning(shared, PRECISION)
    own_keys, own_values = (
        tuple(array[0, :, :, shared:] for array in stored)
        for stored in (
            pool.keys(rows, extent, floats=unpack),
            pool.values(rows, extent, floats=unpack),
        )
    )

    def as_one(rowwise: mx.array) -> mx.array:
        """[rows, kv_heads, repeats, n] as one row's [1, kv_heads, rows * repeats, n]."""
        return rowwise.swapaxes(0, 1).flatten(1, 2)[None]

    def apart(one: mx.array) -> mx.array:
        """The way back."""
        return one.reshape(layer.kv_heads, rows, -1, one.shape[-1]).swapaxes(0, 1)

    powers = many_scores(rows * queries.shape[1] * shared, unpack)
    asked = queries.astype(PRECISION) * (scale * LOG2_E if powers else scale)
    folded = asked.reshape(rows, layer.kv_heads, -1, layer.head_dim)
    common = as_one(folded) @ keys.swapaxes(-1, -2)
    if packed:
        own = score(folded, own_keys, key_side, unpack)
    else:
        own = folded @ to_float(own_keys, key_side, PRECISION).swapaxes(-1, -2)
    own = mx.where(mask[..., shared:], own, -mx.inf)
    top = mx.maximum(apart(common.max(-1, keepdims=True)), own.max(-1, keepdims=True))
    common, own = exponentials(common - as_one(top), powers), exponentials(own - top, powers)
    total = apart(common.sum(-1, keepdims=True)) + own.sum(-1, keepdims=True)
    out = apart(common @ values)
    if packed:
        out += weigh(own, own_values, value_side, unpack)
    else:
        out += own @ to_float(own_values, value_side, PRECISION)
    return (out / total).reshape(*queries.shape[:3], -1).astype(queries.dtype)


def _dequantized(
    queries: mx.array,
    keys: Stored,
    values: Stored,
    layer: LayerSpec,
    mask: mx.array | None,
    scale: float,
    sinks: mx.array | None,
) -> mx.array:
    key_side, value_side = layer.sides
    attention = attend_in_blocks if on_cpu() else mx.fast.scaled_dot_product_attention
    out = attention(
        queries.astype(PRECISION),
        to_float(keys, key_side, PRECISION)[0],
        to_float(values, value_side, PRECISION)[0],
        scale=scale,
        mask=mask,
        sinks=None if sinks is None else sinks.astype(PRECISION),
    )
    return out.astype(queries.dtype)


Call = tuple[Any, Any, Any]
"""Keys, values and mask that a model gave to its attention."""

_calls: list[Call] | None = None


@contextmanager
def watch_calls() -> Iterator[list[Call]]:
    """What models give to attention meanwhile, over caches that are not ours."""
    global _calls
    calls: list[Call] = []
    _calls = calls
    try:
        yield calls
    finally:
        _calls = None


def install() -> None:
    """Put the seam in front of every mlx-lm model's attention. Idempotent.

    Models loaded earlier, a user's own included, hold the name in their module and are
    patched there; models imported later take it from `mlx_lm.models.base`.
    """
    base = importlib.import_module("mlx_lm.models.base")
    original = getattr(base, _NAME)
    if getattr(original, "kvactors_original", None) is None:
        seam = _make_seam(original)
        setattr(base, _NAME, seam)
    else:
        seam, original = original, original.kvactors_original
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(_NAME) is original:
            setattr(module, _NAME, seam)


def _make_seam(original: Any) -> Any:
    def scaled_dot_product_attention(
        queries: mx.array,
        keys: Any,
        values: Any,
        cache: Any,
        scale: float,
        mask: Any,
        sinks: mx.array | None = None,
    ) -> mx.array:
        attended: mx.array
        if hasattr(keys, "attend"):
            attended = keys.attend(queries, mask, scale=scale, sinks=sinks)
        else:
            # Float arrays of a cache of ours must not be taken for mlx-lm's quantized ones.
            plain = None if hasattr(cache, "attend") else cache
            if _calls is not None:
                _calls.append((keys, values, mask))
            attended = original(queries, keys, values, plain, scale=scale, mask=mask, sinks=sinks)
        return attended

    scaled_dot_product_attention.kvactors_original = original  # type: ignore[attr-defined]
    return scaled_dot_product_attention
