"""Where MLX computes, and how exactly. Any thread."""

import os
from functools import cache

import mlx.core as mx

__all__ = ["bits_of", "on_cpu", "on_cuda", "second_stream"]

_WHOLE = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}

# GPUs round the floats of a product to 10 bits unless told otherwise before their first one. Scores
# and sums are then wrong by 2 parts in 1,000, exact ones cost as much (bench/LOG.md).
os.environ.setdefault("MLX_ENABLE_TF32", "0")


def on_cpu() -> bool:
    """Whether MLX computes on the CPU."""
    return bool(mx.default_device() == mx.Device(mx.cpu))


def on_cuda() -> bool:
    """Whether MLX computes on an NVIDIA GPU."""
    return mx.cuda.is_available() and not on_cpu()


def bits_of(array: mx.array) -> mx.array:
    """The bits of an `array` [...] as whole numbers [...], for NumPy, which has no bfloat16. On
    CUDA a copy: what the host reads leaves the GPU's memory for good."""
    bits = array.view(_WHOLE[array.itemsize])
    return bits | 0 if on_cuda() else bits


@cache
def second_stream() -> mx.ThreadLocalStream:
    """Another stream of the CPU: MLX computes each on one core."""
    return mx.new_thread_local_stream(mx.cpu)
