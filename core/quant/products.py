"""Products with stored codes, by the means of the device. GPU thread only."""

import mlx.core as mx

from kvactors.core.cache.spec import Side
from kvactors.core.quant.codec import PRECISION, Stored, to_float
from kvactors.core.quant.device import on_cuda

__all__ = ["multiply_codes"]

# Keys of so many numbers are a tile of the kernel that multiplies with transposed codes.
_CUDA_TILE = 64


def multiply_codes(left: mx.array, stored: Stored, side: Side, *, transposed: bool) -> mx.array:
    """`left` [..., m, k] times codes of [..., n, k], `transposed`, or of [..., k, n], `stored` as
    `side` says: [..., m, n].

    MLX's CUDA build (0.32.4) multiplies only codes without gaps in between, and ours are a part of
    a slab: a copy of the codes takes a tenth of what the floats take. Where one group is a whole
    key it asks for a kernel whose headers pip does not install; then codes become floats.
    """
    if on_cuda():
        if transposed and not _has_tiles(side):
            return left @ to_float(stored, side, PRECISION).swapaxes(-1, -2)
        stored = tuple(mx.contiguous(array) for array in stored)
    codes, scales, biases = stored
    return mx.quantized_matmul(
        left, codes, scales, biases, transposed, group_size=side.group_size, bits=side.bits
    )


def _has_tiles(side: Side) -> bool:
    assert side.group_size is not None
    return side.dim % _CUDA_TILE == 0 and side.group_size < side.dim
