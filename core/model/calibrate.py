"""Which path is faster on this device, and what a launch costs: measured. GPU thread."""

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import mlx.core as mx

from kvactors.core.arena.cells import Cells
from kvactors.core.arena.pools import Pool
from kvactors.core.attention.attend import attend
from kvactors.core.attention.linear_cpu import multiply_parts, parts_of
from kvactors.core.attention.plan import AttendPlan
from kvactors.core.attention.policy import AttentionPath
from kvactors.core.cache.slots import EXTENT_STEP
from kvactors.core.cache.spec import LayerSpec

__all__ = ["measure_launch_tokens", "measure_parts", "measure_threshold", "seconds_of"]

# What parts of a weight must take at most of the whole, to be worth the launches.
_PARTS_GAIN = 0.9
_PATHS: tuple[AttentionPath, ...] = ("packed", "dequantize")


@cache
def measure_threshold(layer: LayerSpec, extent: int = 1024, tries: int = 5) -> int:
    """Query rows per KV head up to which the packed path is faster on this device.

    Times both paths on `extent` random keys of this layer's geometry, the best of `tries`, about
    0.1 s on a CPU, once per process.
    """
    if layer.bits is None or layer.group_size is None:
        return 0
    pool, noise = _random_pool(layer, extent)
    dtype = getattr(mx, layer.dtype)
    threshold = 1
    for width in (2, 4, 8, 16):
        queries = noise[:, :, :width].astype(dtype)
        times = {
            path: min(
                seconds_of(attend, queries, pool.read(1, extent), AttendPlan(path, 1.0))
                for _ in range(tries)
            )
            for path in _PATHS
        }
        if times["packed"] > times["dequantize"]:
            break
        threshold = width
    return threshold


@cache
def measure_launch_tokens(layer: LayerSpec, extent: int = 2048, tries: int = 7) -> int:
    """What one more slab costs a decode step, in tokens of padding read instead.

    A step over few keys of this `layer` is almost all launch; the rest of one over `extent` is
    reading. The best of `tries`, once per process.
    """
    pool, noise = _random_pool(layer, extent)
    query, few = noise[:, :, :1].astype(getattr(mx, layer.dtype)), EXTENT_STEP
    codes = layer.bits is not None and layer.group_size is not None
    plan = AttendPlan("packed" if codes else "dequantize", 1.0)
    short, long = (
        min(seconds_of(attend, query, pool.read(1, keys), plan) for _ in range(tries))
        for keys in (few, extent)
    )
    per_token = max(long - short, 1e-9) / (extent - few)
    return int(min(8192, max(few, (short - few * per_token) / per_token)))


def seconds_of(product: Callable[..., mx.array], *args: Any) -> float:
    """What it takes to make a product [..., outputs] of `args`."""
    start = time.perf_counter()
    mx.eval(product(*args))
    return time.perf_counter() - start


@cache
def measure_parts(tries: int = 5, timed: Callable[..., float] = seconds_of) -> bool:
    """Whether two rows are multiplied faster with parts of 8 MB of weights than with the whole.

    Times both with `timed`, the best of `tries`: about 30 ms on a CPU, once per process. Seen on
    two cores: true with OpenBLAS's kernels for AVX-512, false with those for Haswell and Zen.
    """
    rows, weight = mx.ones((2, 1024)), mx.random.normal((2048, 1024), key=mx.random.key(0))
    mx.eval(rows, weight)
    parts = parts_of(rows, weight)
    whole, split = [], []
    for _ in range(tries):
        whole.append(timed(lambda: rows @ weight.T))
        split.append(timed(multiply_parts, rows, weight, parts))
    return min(split) < _PARTS_GAIN * min(whole)


def _random_pool(layer: LayerSpec, extent: int) -> tuple[Pool, mx.array]:
    """A full slot of random keys, and the numbers they were made of."""
    pool = Pool(layer, 1, extent)
    dtype = getattr(mx, layer.dtype)
    keys, values = (
        mx.random.normal((1, layer.kv_heads, extent, side.dim), key=mx.random.key(0))
        for side in layer.sides
    )
    pool.write(keys.astype(dtype), values.astype(dtype), Cells(mx.arange(extent)[None], 0))
    mx.eval(pool.arrays)
    return pool, keys
