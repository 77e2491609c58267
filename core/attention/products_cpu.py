"""Products with stored codes as floats, for the CPU.

MLX's own product with transposed codes does one sum at a time there (2 GFLOP/s), BLAS one of
floats fifty. So codes become floats for the length of a product. GPU thread only.
"""

import mlx.core as mx

from kvactors.core.cache.spec import Side
from kvactors.core.quant.codec import PRECISION, Stored, dequantize

__all__ = ["LEAST_KEYS", "LEAST_QUERIES", "multiply", "scores_of", "worth_unpacking"]

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


def scores_of(queries: mx.array, keys: Stored, side: Side) -> mx.array:
    """`queries` [..., m, dim] against `keys` of dim codes each, stored as `side` says: [..., m,
    keys]."""
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
