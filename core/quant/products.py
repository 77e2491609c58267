"""Products with stored codes, by the means of the device. GPU thread only."""

import mlx.core as mx

from kvactors.core.cache.spec import Side
from kvactors.core.quant.codec import PRECISION, Stored, to_float
from kvactors.core.quant.device import on_cuda

__all__ = ["multiply_codes"]


def multiply_codes(left: mx.array, stored: Stored, side: Side, *, transposed: bool) -> mx.array:
    """`left` [..., m, k] times codes of [..., n, k], `transposed`, or of [..., k, n], `stored` as
    `side` says: [..., m, n].

    MLX's CUDA build (0.32.4) multiplies only codes without gaps in between, and ours are a part of
    a slab: there they become floats, where the kernels of `kvactors.core.attention.fused_cuda` do
    not take them.
    """
    if on_cuda():
        floats = to_float(stored, side, PRECISION)
        return left @ (floats.swapaxes(-1, -2) if transposed else floats)
    codes, scales, biases = stored
    return mx.quantized_matmul(
        left, codes, scales, biases, transposed, group_size=side.group_size, bits=side.bits
    )
