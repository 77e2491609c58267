"""Where MLX computes. Any thread."""

import mlx.core as mx

__all__ = ["on_cpu"]


def on_cpu() -> bool:
    """Whether MLX computes on the CPU."""
    return bool(mx.default_device() == mx.Device(mx.cpu))
