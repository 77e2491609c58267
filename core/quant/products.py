"""Products with stored codes, by the means of the device. GPU thread only.

MLX's CUDA build (0.32.4) multiplies only codes that lie in memory without gaps, and rounds floats
to 10 bits on the way; ours are a part of a slab, and scores are summed in float32. There codes
become floats for the length of a product.
"""

import mlx.core as mx

from kvactors.core.cache.spec import Side
from kvactors.core.quant.codec import PRECISION, Stored, to_float
from kvactors.core.quant.device import on_cuda

__all__ = ["multiply_codes"]


def multiply_codes(left: mx.array, stored: Stored, side: Side, *, transposed: bool) -> mx.array:
    """`left` [..., m, k] times codes of [..., n, k], `transposed`, or of [..., k, n], `stored` as
    `side` says: [..., m, n]."""
    if on_cuda():
        floats = to_float(stored, side, PRECISION)
        return left @ (floats.swapaxes(-1, -2) if transposed else floats)
    codes, scales, biases = stored
    return mx.quantized_matmul(
        left, codes, scales, biases, transposed, group_size=side.group_size, bits=side.bits
    )
