"""Decode attention over stored codes on an NVIDIA GPU: two kernels of our own. GPU thread only.

MLX's CUDA build (0.32.4) multiplies codes only after copying them, and then takes scores, softmax
and sums in launches of their own. Here the codes are read once, where they are: a block of threads
attends one part of a row's keys, and a second kernel joins the parts through their maxima and sums
(split keys, as in Flash-Decoding, Dao et al. 2023). Scores, softmax and sums are float32.

Parts begin at fixed positions and are summed in order, so a row's result does not depend on its
neighbours, on the padding, or on how many keys are read.
"""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import mlx.core as mx

from kvactors.core.attention.packed import LOG2_E, apart, as_one
from kvactors.core.attention.plan import AttendPlan, causal_mask
from kvactors.core.cache.spec import Side
from kvactors.core.quant.codec import PRECISION, Stored, StoredKV

__all__ = ["Parts", "attend_fused", "attend_together_fused", "fits"]

Parts = tuple[mx.array, mx.array, mx.array]
"""Sums of values, the largest score in powers of two, and the sum of weights, each float32."""

PART = 256
"""Keys that one block attends."""
_THREADS = 128
# Queries that a block attends at once: more keep too many sums in registers.
_QUERIES = 8


def fits(stored: StoredKV) -> bool:
    """Whether the kernels take what is `stored`: codes of 4 or 8 bits whose words are no more than
    threads."""
    kept = zip((stored.keys, stored.values), stored.sides, strict=True)
    return all(_side_fits(arrays, side) for arrays, side in kept)


def _side_fits(arrays: Stored, side: Side) -> bool:
    if len(arrays) != 3 or side.bits not in (4, 8):
        return False
    return arrays[0].shape[-1] <= _THREADS


def attend_fused(
    queries: mx.array, stored: StoredKV, plan: AttendPlan, beside: Parts | None = None
) -> mx.array:
    """`attend` of `kvactors.core.attention.attend` where `fits`, `stored` and `plan` as there:
    `queries` are [rows, heads, T, head_dim], the result is [rows, heads, T, value_dim]. `beside`:
    what other keys of these rows came to, [rows, kv_heads, repeats * T, value_dim or 1]."""
    rows, heads, tokens, _ = queries.shape
    kv_heads, extent = stored.keys[0].shape[2:4]
    asked = heads // kv_heads * tokens
    # Each number of queries is a kernel to compile: those of decode steps, and one for all others.
    tile = asked if tokens == 1 and asked <= _QUERIES else _QUERIES
    mask = plan.mask
    if isinstance(mask, str):
        mask = causal_mask(tokens, extent)
    mask = mx.broadcast_to(_all() if mask is None else mask, (rows, 1, tokens, extent))
    found = _parts(queries, stored, mask, plan.scale, tile)
    if beside is not None:
        others = (_in_tiles(other, tile) for other in beside)
        sums, maxima, totals = map(partial(mx.concatenate, axis=3), zip(found, others, strict=True))
        found = sums, maxima, totals
    sinks = mx.broadcast_to(_none() if plan.sinks is None else plan.sinks, (heads,))
    value_dim = stored.sides[1].dim
    out: mx.array
    (out,) = _joining()(
        inputs=[*found, sinks, queries],
        grid=(asked * value_dim, kv_heads, rows),
        threadgroup=(value_dim, 1, 1),
        output_shapes=[(rows, heads, tokens, value_dim)],
        output_dtypes=[plan.out_dtype or queries.dtype],
    )
    return out


def attend_together_fused(
    queries: mx.array, rest: StoredKV, prefix: tuple[mx.array, ...], plan: AttendPlan
) -> mx.array:
    """`attend_together` of `kvactors.core.attention.attend` where `fits`: `queries` [rows, heads,
    T, head_dim], the shared `prefix` as floats, [1, kv_heads, shared, dim] each, the `rest` of each
    row, and a `plan` with a mask of all keys. The result is [rows, heads, T, value_dim]."""
    keys, values = prefix
    rows, kv_heads, shared = len(queries), *keys.shape[1:3]
    folded = queries.astype(PRECISION).reshape(rows, kv_heads, -1, queries.shape[-1])
    scores = as_one(folded * (plan.scale * LOG2_E)) @ keys.swapaxes(-1, -2)
    top = scores.max(-1, keepdims=True)
    weights = mx.power(2.0, scores - top)
    common = weights @ values, top, weights.sum(-1, keepdims=True)
    sums, maxima, totals = (apart(one, rows) for one in common)
    assert isinstance(plan.mask, mx.array)
    plan = replace(plan, mask=plan.mask[..., shared:])
    return attend_fused(queries, rest, plan, (sums, maxima, totals))


def _parts(queries: mx.array, stored: StoredKV, mask: mx.array, scale: float, tile: int) -> Parts:
    """What each part of the keys comes to, `tile` of `queries` [rows, heads, T, head_dim] at once:
    sums [rows, kv_heads, tiles, parts, tile, value_dim], and of their last axis 1, the largest
    scores and the sums of weights. `mask` [rows, 1, T, keys] is of booleans."""
    rows, heads, tokens, _ = queries.shape
    kv_heads, extent = stored.keys[0].shape[2:4]
    key_side, value_side = stored.sides
    tiles, parts = -(-(heads // kv_heads * tokens) // tile), -(-extent // PART)
    found = rows, kv_heads, tiles, parts, tile
    sums, maxima, totals = _attending()(
        inputs=[queries, *stored.keys, *stored.values, mask, _number(float(scale * LOG2_E))],
        template=[
            ("TILE", tile),
            ("DIM", key_side.dim),
            ("KEY_BITS", key_side.bits),
            ("KEY_GROUP", key_side.group_size),
            ("VALUE_DIM", value_side.dim),
            ("VALUE_BITS", value_side.bits),
            ("VALUE_GROUP", value_side.group_size),
            ("PART", PART),
            ("THREADS", _THREADS),
        ],
        grid=(parts * _THREADS, kv_heads * tiles, rows),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(*found, value_side.dim), (*found, 1), (*found, 1)],
        output_dtypes=[mx.float32] * 3,
    )
    return sums, maxima, totals


def _in_tiles(part: mx.array, tile: int) -> mx.array:
    """[rows, kv_heads, queries, n] as one part of `_parts`, [rows, kv_heads, tiles, 1, tile, n]."""
    rows, kv_heads, asked, width = part.shape
    padded = mx.pad(part, [(0, 0), (0, 0), (0, -asked % tile), (0, 0)])
    return padded.reshape(rows, kv_heads, -1, 1, tile, width)


@cache
def _number(value: float) -> mx.array:
    return mx.array([value])


@cache
def _all() -> mx.array:
    """What shows every key."""
    return mx.array(True)


@cache
def _none() -> mx.array:
    """A sink that takes no weight."""
    return mx.array(-mx.inf)


@cache
def _source(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


@cache
def _attending() -> Any:
    sides = [
        f"{side}_{name}" for side in ("key", "value") for name in ("codes", "scales", "biases")
    ]
    return mx.fast.cuda_kernel(
        name="attend_parts_of_codes",
        input_names=["queries", *sides, "mask", "scale"],
        output_names=["sums_of_parts", "maxima", "totals"],
        source=_source("attend_parts.cu"),
        header=_source("codes.cuh"),
        ensure_row_contiguous=False,
    )


@cache
def _joining() -> Any:
    return mx.fast.cuda_kernel(
        name="join_parts_of_codes",
        input_names=["sums_of_parts", "maxima", "totals", "sinks", "queries"],
        output_names=["out"],
        source=_source("join_parts.cu"),
        header=_source("codes.cuh") + f"\n#define LOG2_E {LOG2_E}f\n",
        ensure_row_contiguous=False,
    )
