"""The packed path of attention: products with stored codes, and on a CPU with codes as floats.

A decode step of many scores takes two cores there. GPU thread only.
"""

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import numpy as np

from kvactors.core.attention.plan import AttendPlan, causal_mask
from kvactors.core.attention.products_cpu import multiply, scores_of, worth_unpacking
from kvactors.core.cache.spec import Side
from kvactors.core.quant.codec import PRECISION, Stored, StoredKV, to_float
from kvactors.core.quant.products import multiply_codes

__all__ = [
    "LOG2_E",
    "apart",
    "as_one",
    "attend_packed",
    "exponentials",
    "many_scores",
    "masked",
    "score",
    "weigh",
]

# From so many scores on, exponentials cost more than a few operations.
_MANY_SCORES = 1 << 14
# From so many on, a decode step gains from a second core (bench/LOG.md).
HALVED_SCORES = 1 << 16
LOG2_E = 1.4426950408889634
# Of products that are summed up: bytes that there are of them at once (bench/LOG.md).
MOST_BYTES = 1 << 20


def attend_packed(queries: mx.array, stored: StoredKV, plan: AttendPlan) -> mx.array:
    """`attend` of `kvactors.core.attention.attend` on the packed path, `stored` and `plan` as
    there: `queries` are [rows, heads, T, head_dim], the result is [rows, heads, T, value_dim]."""
    rows, heads, tokens, _ = queries.shape
    keys = stored.keys[0].shape[-2]
    if isinstance(plan.mask, str):
        plan = replace(plan, mask=causal_mask(tokens, keys))
    scores = rows * heads * keys
    one = not plan.unpack or tokens > 1 or rows == 1 or scores < HALVED_SCORES
    if one or plan.second is None:
        return _attended(queries, stored, plan)

    def attended(some: slice) -> mx.array:
        mask = plan.mask[some] if isinstance(plan.mask, mx.array) else None
        return _attended(queries[some], stored.rows(some), replace(plan, mask=mask))

    with mx.stream(plan.second()):
        others = attended(slice(rows // 2, None))
    return mx.concatenate([attended(slice(rows // 2)), others])


def _attended(queries: mx.array, stored: StoredKV, plan: AttendPlan) -> mx.array:
    rows, heads, tokens, dim = queries.shape
    kv_heads, extent = stored.keys[0].shape[2:4]
    repeats = heads // kv_heads
    # Several tokens of as many take the other path.
    powers = tokens == 1 and many_scores(rows * heads * extent, unpack=plan.unpack)
    # Query heads that share a KV head become rows of one product, not copies of the keys.
    asked = queries.astype(PRECISION) * (plan.scale * LOG2_E if powers else plan.scale)
    folded = asked.reshape(1, rows, kv_heads, repeats * tokens, dim)
    key_side, value_side = stored.sides
    assert not isinstance(plan.mask, str)
    scores = score(folded, stored.keys, key_side, unpack=plan.unpack)
    scores = masked(scores, plan.mask, tokens)
    if powers:
        weights, total = _powers(scores, plan.sinks)
    else:
        weights, total = _softmax(scores, plan.sinks, tokens), None
    out = weigh(weights, stored.values, value_side, unpack=plan.unpack)
    out = out if total is None else out / total
    return out.reshape(rows, heads, tokens, -1).astype(plan.out_dtype or queries.dtype)


def as_one(rowwise: mx.array) -> mx.array:
    """[rows, kv_heads, queries, n] as one row's [1, kv_heads, rows * queries, n]."""
    return rowwise.swapaxes(0, 1).flatten(1, 2)[None]


def apart(one: mx.array, rows: int) -> mx.array:
    """The way back from `as_one` of so many `rows`: [1, kv_heads, rows * queries, n] as [rows,
    kv_heads, queries, n]."""
    _, kv_heads, _, width = one.shape
    return one.reshape(kv_heads, rows, -1, width).swapaxes(0, 1)


def masked(scores: mx.array, mask: mx.array | None, tokens: int) -> mx.array:
    """`scores` [1, rows, kv_heads, repeats * tokens, extent], of what the `mask` [rows, 1, tokens,
    extent] does not show minus infinity."""
    if mask is None:
        return scores
    if tokens == 1:
        return mx.where(mask, scores, -mx.inf)
    _, rows, kv_heads, _, extent = scores.shape
    apart = scores.reshape(rows, kv_heads, -1, tokens, extent)
    return mx.where(mask[:, :, None], apart, -mx.inf).reshape(scores.shape)


def _softmax(scores: mx.array, sinks: mx.array | None, tokens: int) -> mx.array:
    """Weights of the keys; a sink is one more score of its head, whose weight is dropped."""
    if sinks is None:
        return mx.softmax(scores, axis=-1, precise=True)
    sink = mx.broadcast_to(_sink_scores(scores, sinks, tokens), (*scores.shape[:-1], 1))
    return mx.softmax(mx.concatenate([scores, sink], axis=-1), axis=-1, precise=True)[..., :-1]


def many_scores(scores: int, *, unpack: bool) -> bool:
    """Whether so many are worth more operations than `mx.exp`, which takes 16 ns on a CPU. A step
    that is built while another one runs takes powers of two, 6 ns, of scores times `LOG2_E`."""
    return unpack and scores >= _MANY_SCORES


def exponentials(scores: mx.array, *, powers: bool, at_once: bool = False) -> mx.array:
    """Exponentials of `scores` [..., keys], or `powers` of two; `at_once`: by NumPy and in place.
    Nobody else may hold the scores then."""
    if scores.dtype == mx.float64:
        # MLX's own have the digits of float32.
        assert not powers
        return mx.array(np.exp(np.array(scores)), mx.float64)
    if at_once:
        mx.eval(scores)
        view = np.array(scores, copy=False)
        np.exp(view, out=view)
        return scores
    return mx.power(2.0, scores) if powers else mx.exp(scores)


def _powers(scores: mx.array, sinks: mx.array | None) -> tuple[mx.array, mx.array]:
    """Undivided weights of one query a row, and what to divide by: [..., 1]."""
    top = scores.max(-1, keepdims=True)
    if sinks is None:
        weights = exponentials(scores - top, powers=True)
        return weights, weights.sum(-1, keepdims=True)
    sink = _sink_scores(scores, sinks.astype(PRECISION) * LOG2_E, 1)
    top = mx.maximum(top, sink)
    weights = exponentials(scores - top, powers=True)
    return weights, weights.sum(-1, keepdims=True) + exponentials(sink - top, powers=True)


def _sink_scores(scores: mx.array, sinks: mx.array, tokens: int) -> mx.array:
    """Sinks [heads] as [kv_heads, repeats * T, 1]."""
    repeated = sinks.astype(PRECISION).reshape(scores.shape[-3], -1)
    return mx.repeat(repeated, tokens, axis=1)[..., None]


def score(queries: mx.array, keys: Stored, side: Side, *, unpack: bool) -> mx.array:
    """Scores [..., m, keys] of `queries` [..., m, dim] over `keys` stored as `side` says; `unpack`:
    as floats where that is faster."""
    if len(keys) == 1:
        if unpack:
            return multiply(queries, keys[0].astype(PRECISION))
        # BLAS picks its kernel by shape, so its sums depend on the batch; these do not.
        every = keys[0].astype(PRECISION)[..., None, :, :]
        return _of_some(queries, every, lambda some: (some[..., None, :] * every).sum(-1))
    if unpack and worth_unpacking(keys[0]):
        return scores_of(queries, keys, side)
    return multiply_codes(queries, keys, side, transposed=True)


def weigh(weights: mx.array, values: Stored, side: Side, *, unpack: bool) -> mx.array:
    """Sums [..., m, dim] of `values` by `weights` [..., m, keys]; `side`, `unpack` as in
    `score`."""
    if len(values) == 1:
        if unpack:
            return weights @ values[0].astype(PRECISION)
        every = values[0].astype(PRECISION)[..., None, :, :]
        return _of_some(weights, every, lambda some: (some[..., None] * every).sum(-2))
    if unpack and worth_unpacking(values[0], weights.shape[-2]):
        return weights @ to_float(values, side, PRECISION)
    return multiply_codes(weights, values, side, transposed=False)


def _of_some(queries: mx.array, every: mx.array, form: Callable[[mx.array], mx.array]) -> mx.array:
    """What `form` makes of `queries` [..., m, n], some at a time: each of them is multiplied with
    all of `every`, and of a whole chunk that is many times its KV."""
    several = MOST_BYTES // max(1, every.nbytes) or 1
    parts = range(0, max(1, queries.shape[-2]), several)
    found = [form(queries[..., part : part + several, :]) for part in parts]
    return mx.concatenate(found, axis=-2) if len(found) > 1 else found[0]
