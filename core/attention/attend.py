"""How queries meet stored keys and values.

Two paths over the stored codes, both with float32 scores, softmax and sums whatever the
model's dtype (in half precision they disagree enough to change tokens):

- packed: `mx.quantized_matmul` on the codes, no float copy [injection, Core
  Insight]. For few queries. On the CPU, unless the path is pinned, products of few queries take the
  codes as floats, decode steps of many scores two cores, and several tokens of many scores the
  other path. An NVIDIA GPU has kernels of ours for it.
- dequantize: this layer's keys and values in float32, transiently, and fused attention, on the
  CPU block by block. For prefill chunks; several times faster there.

The packed path is exact by row on the CPU: a row's result does not depend on its neighbours, on
the padding, or on how many queries are asked at once. Rows that begin alike may ask the keys they
share as one row does, with few queries each, on the second path. GPU thread only.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx

from kvactors.core.attention.blockwise_cpu import attend_in_blocks
from kvactors.core.attention.fused_cuda import attend_fused, attend_together_fused, fits
from kvactors.core.attention.packed import (
    LOG2_E,
    apart,
    as_one,
    attend_packed,
    exponentials,
    many_scores,
    masked,
    score,
    weigh,
)
from kvactors.core.attention.plan import AttendPlan
from kvactors.core.quant.codec import StoredKV, to_float
from kvactors.core.quant.device import on_cpu, on_cuda

__all__ = ["attend", "attend_together"]


def attend(queries: mx.array, stored: StoredKV, plan: AttendPlan) -> mx.array:
    """Attention over each row's own keys.

    Args:
        queries: [n, heads, T, head_dim].
        stored: keys and values of n rows, [1, n, kv_heads, extent, width].
        plan: mask, scale, sinks and path.

    Returns [n, heads, T, value_dim] in the dtype that is asked for, else the queries'.
    """
    rows, heads, tokens, _ = queries.shape
    scores = rows * heads * tokens * stored.keys[0].shape[-2]
    if plan.packed and on_cuda() and fits(stored):
        return attend_fused(queries, stored, plan)
    if plan.packed and not (tokens > 1 and many_scores(scores, unpack=plan.unpack)):
        return attend_packed(queries, stored, plan)
    return _dequantized(queries, stored, plan)


def attend_together(
    queries: mx.array, stored: StoredKV, prefix: tuple[mx.array, ...], plan: AttendPlan
) -> mx.array:
    """`attend` of few queries a row, where all rows hold the same first keys, and more.

    Those are read once, as floats: the queries of all rows are one product. Each row's own keys
    follow, on either path; the two parts are joined through their maxima and sums (cascade
    attention).

    Args:
        queries: [n, heads, T, head_dim].
        stored: keys and values of n rows, the shared ones included, or those behind them.
        prefix: the shared keys and values, [1, kv_heads, shared, dim] each. All queries see them.
        plan: as for `attend`, with a mask and without sinks.

    Returns [n, heads, T, value_dim] in the dtype that is asked for, else the queries'.
    """
    keys, values = prefix
    rows, heads, tokens, dim = queries.shape
    kv_heads, shared = keys.shape[1:3]
    own_side, value_side = stored.sides
    rest = stored.beyond(shared)
    if plan.packed and on_cuda() and fits(stored):
        return attend_together_fused(queries, rest, prefix, plan)
    many = many_scores(rows * heads * tokens * shared, unpack=plan.unpack)
    powers = many and tokens == 1
    asked = queries.astype(plan.precision) * (plan.scale * LOG2_E if powers else plan.scale)
    folded = asked.reshape(rows, kv_heads, -1, dim)
    common = as_one(folded) @ keys.swapaxes(-1, -2)
    if plan.packed:
        own = score(folded[None], rest.keys, own_side, unpack=plan.unpack)[0, ...]
    else:
        own = folded @ to_float(rest.keys, own_side, plan.precision).squeeze(0).swapaxes(-1, -2)
    assert isinstance(plan.mask, mx.array)
    own = masked(own[None], plan.mask[..., shared:], tokens)[0, ...]
    top = mx.maximum(apart(common.max(-1, keepdims=True), rows), own.max(-1, keepdims=True))
    common = exponentials(common - as_one(top), powers=powers, at_once=many and tokens > 1)
    own = exponentials(own - top, powers=powers)
    total = apart(common.sum(-1, keepdims=True), rows) + own.sum(-1, keepdims=True)
    out = apart(common @ values, rows)
    if plan.packed:
        out += weigh(own[None], rest.values, value_side, unpack=plan.unpack)[0, ...]
    else:
        out += own @ to_float(rest.values, value_side, plan.precision).squeeze(0)
    return (out / total).reshape(rows, heads, tokens, -1).astype(plan.out_dtype or queries.dtype)


def _dequantized(queries: mx.array, stored: StoredKV, plan: AttendPlan) -> mx.array:
    attention = attend_in_blocks if on_cpu() else _fused
    out = attention(
        queries.astype(plan.precision),
        partial(stored.floats, plan.precision),
        scale=plan.scale,
        mask=plan.mask,
        sinks=None if plan.sinks is None else plan.sinks.astype(plan.precision),
    )
    return out.astype(plan.out_dtype or queries.dtype)


def _fused(
    queries: mx.array, floats: Callable[[], tuple[mx.array, mx.array]], **how: Any
) -> mx.array:
    return mx.fast.scaled_dot_product_attention(queries, *floats(), **how)
