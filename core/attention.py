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
from functools import cache
from typing import Any

import mlx.core as mx

from kvactors.core.blockwise import attend_in_blocks, exponentiate, on_cpu
from kvactors.core.pools import Pool, Stored, to_float
from kvactors.core.spec import LayerSpec, Side
from kvactors.core.unpacking import PRECISION, scores_of, worth_unpacking

__all__ = [
    "DEFAULT_THRESHOLD",
    "HALVED_SCORES",
    "attend",
    "attend_together",
    "install",
    "watch_calls",
]

# Query rows per KV head up to which packed is the faster path, until measured: on the CPU
# (2 cores, OpenBLAS) the paths cross between 4 and 8 (bench/LOG.md).
DEFAULT_THRESHOLD = 4

# From so many scores on, exponentials cost more than a few operations.
_MANY_SCORES = 1 << 15
# From so many on, a decode step gains from a second core (bench/LOG.md).
HALVED_SCORES = 1 << 16
_LOG2_E = 1.4426950408889634

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
    rows, heads, tokens, _ = queries.shape
    keys = pool.keys(rows, extent, floats=unpack)
    values = pool.values(rows, extent, floats=unpack)
    if not packed:
        return _dequantized(queries, keys, values, pool.layer, mask, scale, sinks)
    halved = unpack and rows > 1 == tokens and heads * rows * extent >= HALVED_SCORES
    attention = _in_halves if halved else _packed
    return attention(queries, keys, values, pool.layer, mask, scale, sinks, unpack)


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
    keys = to_float(pool.keys(1, shared, floats=unpack), key_side, PRECISION)[0]
    values = to_float(pool.values(1, shared, floats=unpack), value_side, PRECISION)[0]
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

    folded = (queries.astype(PRECISION) * scale).reshape(rows, layer.kv_heads, -1, layer.head_dim)
    common = as_one(folded) @ keys.swapaxes(-1, -2)
    if packed:
        own = _scores(folded, own_keys, key_side, unpack)
    else:
        own = folded @ to_float(own_keys, key_side, PRECISION).swapaxes(-1, -2)
    own = mx.where(mask[..., shared:], own, -mx.inf)
    top = mx.maximum(apart(common.max(-1, keepdims=True)), own.max(-1, keepdims=True))
    common, own = _exp(common - as_one(top), unpack), _exp(own - top, unpack)
    total = apart(common.sum(-1, keepdims=True)) + own.sum(-1, keepdims=True)
    out = apart(common @ values)
    if packed:
        out += _weighted(own, own_values, value_side, unpack)
    else:
        out += own @ to_float(own_values, value_side, PRECISION)
    return (out / total).reshape(*queries.shape[:3], -1).astype(queries.dtype)


def _in_halves(
    queries: mx.array,
    keys: Stored,
    values: Stored,
    layer: LayerSpec,
    mask: mx.array | None,
    scale: float,
    sinks: mx.array | None,
    unpack: bool,
) -> mx.array:
    """`_packed`, half of the rows on a stream of their own: on a CPU each stream has a core."""

    def attended(some: slice) -> mx.array:
        own_keys, own_values = (tuple(array[:, some] for array in side) for side in (keys, values))
        own_mask = None if mask is None else mask[some]
        return _packed(queries[some], own_keys, own_values, layer, own_mask, scale, sinks, unpack)

    half = queries.shape[0] // 2
    with mx.stream(_second_stream()):
        others = attended(slice(half, None))
    return mx.concatenate([attended(slice(half)), others])


@cache
def _second_stream() -> mx.ThreadLocalStream:
    return mx.new_thread_local_stream(mx.cpu)


def _packed(
    queries: mx.array,
    keys: Stored,
    values: Stored,
    layer: LayerSpec,
    mask: mx.array | None,
    scale: float,
    sinks: mx.array | None,
    unpack: bool,
) -> mx.array:
    rows, heads, tokens, dim = queries.shape
    repeats = heads // layer.kv_heads
    # Query heads that share a KV head become rows of one product, not copies of the keys.
    folded = (queries.astype(PRECISION) * scale).reshape(
        1, rows, layer.kv_heads, repeats * tokens, dim
    )
    key_side, value_side = layer.sides
    scores = _scores(folded, keys, key_side, unpack)
    if mask is not None and tokens == 1:
        scores = mx.where(mask, scores, -mx.inf)
    elif mask is not None:
        shape = (rows, layer.kv_heads, repeats, tokens, scores.shape[-1])
        scores = mx.where(mask[:, :, None], scores.reshape(shape), -mx.inf)
        scores = scores.reshape(1, rows, layer.kv_heads, repeats * tokens, -1)
    if unpack and scores.size >= _MANY_SCORES:
        weights, total = _exponentials(scores, sinks, tokens)
        out = _weighted(weights, values, value_side, unpack) / total
    else:
        out = _weighted(_softmax(scores, sinks, tokens), values, value_side, unpack)
    return out.reshape(rows, heads, tokens, -1).astype(queries.dtype)


def _softmax(scores: mx.array, sinks: mx.array | None, tokens: int) -> mx.array:
    """Weights of the keys; a sink is one more score of its head, whose weight is dropped."""
    if sinks is None:
        return mx.softmax(scores, axis=-1, precise=True)
    sink = mx.broadcast_to(_sink_scores(scores, sinks, tokens), (*scores.shape[:-1], 1))
    return mx.softmax(mx.concatenate([scores, sink], axis=-1), axis=-1, precise=True)[..., :-1]


def _exponentials(
    scores: mx.array, sinks: mx.array | None, tokens: int
) -> tuple[mx.array, mx.array]:
    """The same on a CPU, undivided, and what to divide by."""
    if tokens > 1:
        weights = scores[0]
        total = exponentiate(weights, None, weights.shape[2] // tokens, sinks)
        return weights[None], total[None]
    top = scores.max(-1, keepdims=True)
    sink = None if sinks is None else _sink_scores(scores, sinks, tokens)
    if sink is not None:
        top = mx.maximum(top, sink)
    weights = _exp(scores - top, True)
    total = weights.sum(-1, keepdims=True)
    if sink is not None:
        total += mx.exp(sink - top)
    return weights, total


def _exp(scores: mx.array, unpack: bool) -> mx.array:
    """Exponentials in a step that is built while another one runs. Many of them, on a CPU, as
    powers of two: 6 ns instead of 16."""
    if unpack and scores.size >= _MANY_SCORES:
        return mx.power(2.0, scores * _LOG2_E)
    return mx.exp(scores)


def _sink_scores(scores: mx.array, sinks: mx.array, tokens: int) -> mx.array:
    """Sinks [heads] as [kv_heads, repeats * T, 1]."""
    repeated = sinks.astype(PRECISION).reshape(scores.shape[-3], -1)
    return mx.repeat(repeated, tokens, axis=1)[..., None]


def _scores(queries: mx.array, keys: Stored, side: Side, unpack: bool) -> mx.array:
    if len(keys) == 1:
        if unpack:
            return queries @ keys[0].astype(PRECISION).swapaxes(-1, -2)
        # BLAS picks its kernel by shape, so its sums depend on the batch; these do not.
        return (queries[..., None, :] * keys[0].astype(PRECISION)[..., None, :, :]).sum(-1)
    if unpack and worth_unpacking(keys[0]):
        return scores_of(queries, keys, side)
    codes, scales, biases = keys
    return mx.quantized_matmul(
        queries, codes, scales, biases, True, group_size=side.group_size, bits=side.bits
    )


def _weighted(weights: mx.array, values: Stored, side: Side, unpack: bool) -> mx.array:
    if len(values) == 1:
        if unpack:
            return weights @ values[0].astype(PRECISION)
        return (weights[..., None] * values[0].astype(PRECISION)[..., None, :, :]).sum(-2)
    if unpack and worth_unpacking(values[0], weights.shape[-2]):
        return weights @ to_float(values, side, PRECISION)
    codes, scales, biases = values
    return mx.quantized_matmul(
        weights, codes, scales, biases, False, group_size=side.group_size, bits=side.bits
    )


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
