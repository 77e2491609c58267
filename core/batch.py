"""Quantized caches for mlx-lm's own BatchGenerator."""

from kvactors.core.arena.batch_cache import BatchQuantizedKVCache, enable_in_mlx_lm

__all__ = ["BatchQuantizedKVCache", "enable_in_mlx_lm"]
