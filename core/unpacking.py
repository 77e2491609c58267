"""Codes as floats, for the CPU.

MLX's own product with transposed codes does one sum at a time there (2 GFLOP/s), BLAS one of
floats fifty. So codes become floats for the length of a product. GPU thread only.
"""

from functools import cache
from typing import Any

import mlx.core as mx

from kvactors.core.blockwise import on_cpu
from kvactors.core.spec import Side

__all__ = ["LEAST_KEYS", "PRECISION", "dequantize", "multiply", "scores_of", "worth_unpacking"]

# Of scores, softmax and sums, whatever the model's dtype.
PRECISION = mx.float32

# Keys of a step from which it pays (launches count below that), and queries per KV head that are
# many: from there it does for sums too, whose product with codes is faster (bench/LOG.md).
LEAST_KEYS = 4096
LEAST_QUERIES = 6


def worth_unpacking(codes: mx.array, queries: int = LEAST_QUERIES) -> bool:
    """Whether codes [..., rows, kv_heads, keys, width] are enough."""
    return _many(codes) and queries >= LEAST_QUERIES


def _many(keys: mx.array) -> bool:
    *_, rows, heads, count, _ = keys.shape
    return rows * heads * count >= LEAST_KEYS


def dequantize(stored: tuple[mx.array, ...], side: Side, dtype: Any) -> mx.array:
    """Codes [..., keys, width], scales and biases as numbers [..., keys, dim], the very ones of
    `mx.dequantize`.

    That is a dozen elementwise operations on the CPU. One times a row as long as all keys is
    one product there: four times as fast, ten times for few keys (bench/LOG.md).
    """
    codes, scales, biases = stored
    scales, biases = scales.astype(dtype), biases.astype(dtype)
    form: dict[str, Any] = {"group_size": side.group_size, "bits": side.bits}
    if codes.size and on_cpu() and _proven(dtype, **form):
        return _times_one(codes, scales, biases, form)
    return mx.dequantize(codes, scales, biases, **form)


def _times_one(
    codes: mx.array, scales: mx.array, biases: mx.array, form: dict[str, Any]
) -> mx.array:
    # Of fewer than three axes the one would not be repeated for all.
    one, shape = mx.array([[[1.0]]], scales.dtype), codes.shape
    if shape[-2] == 1:
        return mx.quantized_matmul(one, codes, scales, biases, False, **form)
    codes, scales, biases = (a.flatten(-2)[..., None, :] for a in (codes, scales, biases))
    return mx.quantized_matmul(one, codes, scales, biases, False, **form).reshape(*shape[:-1], -1)


@cache
def _proven(dtype: Any, **form: Any) -> bool:
    """Whether the product gives these numbers here: some kernels of MLX are wrong, or missing."""
    if dtype == mx.float64:
        return False
    noise = mx.random.normal((2, 63, 2 * form["group_size"]), dtype, key=mx.random.key(0))
    codes, scales, biases = mx.quantize(noise, **form)
    expected = mx.dequantize(codes, scales, biases, **form)
    return all(
        bool(mx.array_equal(_times_one(*stored, form), numbers))
        for stored, numbers in (
            ((codes, scales, biases), expected),
            ((codes[:, :1], scales[:, :1], biases[:, :1]), expected[:, :1]),
        )
    )


def scores_of(queries: mx.array, keys: tuple[mx.array, ...], side: Side) -> mx.array:
    """Queries [..., m, dim] against keys of dim codes each: scores [..., m, keys]."""
    many = queries.shape[-2] >= LEAST_QUERIES
    if many or side.bits != 4 or side.group_size != side.dim:
        return multiply(queries, dequantize(keys, side, PRECISION))
    # The low halves of the bytes, then the high ones, which say 16 times as much; unscaled.
    codes, (scales, biases) = keys[0].view(mx.uint8), map(_turned, keys[1:])
    low, high = (
        (codes & mask).astype(PRECISION) @ mx.contiguous(_turned(part))
        for mask, part in ((15, queries[..., ::2]), (240, queries[..., 1::2] / 16))
    )
    unscaled = mx.contiguous(_turned(low + high))
    return unscaled * scales + queries.sum(-1, keepdims=True) * biases


def multiply(queries: mx.array, keys: mx.array) -> mx.array:
    """Scores [..., m, keys] of queries [..., m, dim], both float. Few queries against many keys are
    multiplied from the right: half of the time in BLAS."""
    if queries.shape[-2] < LEAST_QUERIES and _many(keys):
        return _turned(keys @ mx.contiguous(_turned(queries)))
    return queries @ _turned(keys)


def _turned(matrices: mx.array) -> mx.array:
    return matrices.swapaxes(-1, -2)
