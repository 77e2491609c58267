"""Products with codes of 4 bits as floats, for the CPU.

MLX's own product with transposed codes does one sum at a time there (2 GFLOP/s). These are a
BLAS product with the low halves of the bytes and one with the high halves, unscaled; scale and
bias follow, one of each a key. Nothing is kept. GPU thread only.
"""

import mlx.core as mx

from kvactors.core.spec import Side

__all__ = ["PRECISION", "scores_of_bytes", "sums_of_bytes", "worth_unpacking"]

# Of scores, softmax and sums, whatever the model's dtype.
PRECISION = mx.float32

# Keys of a step from which it pays (launches count below that), and queries per KV head from
# which it does for sums, whose product with codes is faster (bench/LOG.md).
LEAST_KEYS = 4096
LEAST_QUERIES = 6


def worth_unpacking(codes: mx.array, side: Side, queries: int = LEAST_QUERIES) -> bool:
    """Whether codes [..., rows, kv_heads, keys, width] have the form, and are enough."""
    *_, rows, heads, keys, _ = codes.shape
    form = side.bits == 4 and side.group_size == side.dim
    return form and rows * heads * keys >= LEAST_KEYS and queries >= LEAST_QUERIES


def scores_of_bytes(
    queries: mx.array, codes: mx.array, scales: mx.array, biases: mx.array
) -> mx.array:
    """Queries [..., m, dim] against keys of dim codes each: scores [..., m, keys]."""
    pairs = queries.reshape(*queries.shape[:-1], -1, 2)
    even, odd = (
        pairs[..., index] @ half.swapaxes(-1, -2) for index, half in enumerate(_halves(codes))
    )
    scales, biases = (array.astype(PRECISION).swapaxes(-1, -2) for array in (scales, biases))
    return (even + odd) * scales + queries.sum(-1, keepdims=True) * biases


def sums_of_bytes(
    weights: mx.array, codes: mx.array, scales: mx.array, biases: mx.array
) -> mx.array:
    """Weights [..., m, values] on values of dim codes each: sums [..., m, dim]. The weights take
    the scale before, and their own sum of biases."""
    scaled = weights * scales.astype(PRECISION).swapaxes(-1, -2)
    sums = mx.stack([scaled @ half for half in _halves(codes)], axis=-1)
    return sums.flatten(-2) + weights @ biases.astype(PRECISION)


def _halves(codes: mx.array) -> tuple[mx.array, mx.array]:
    """Codes of 4 bits at even and at odd places, as floats."""
    pairs = codes.view(mx.uint8)
    return (pairs & 15).astype(PRECISION), (pairs >> 4).astype(PRECISION)
