"""Where MLX computes, and how exactly. Any thread."""

import os
from functools import cache

import mlx.core as mx

__all__ = ["on_cpu", "on_cuda", "second_stream"]

# GPUs round the floats of a product to 10 bits unless told otherwise before their first one. Scores
# and sums are then wrong by 2 parts in 1,000, exact ones cost as much (bench/LOG.md).
os.environ.setdefault("MLX_ENABLE_TF32", "0")


def on_cpu() -> bool:
    """Whether MLX computes on the CPU."""
    return bool(mx.default_device() == mx.Device(mx.cpu))


def on_cuda() -> bool:
    """Whether MLX computes on an NVIDIA GPU."""
    return mx.cuda.is_available() and not on_cpu()


@cache
def second_stream() -> mx.ThreadLocalStream:
    """Another stream of the CPU: MLX computes each on one core."""
    return mx.new_thread_local_stream(mx.cpu)
