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
# On a GPU: keys of which reading takes longer than a launch, and products evaluated together.
GPU_EXTENT, MANY = 4096, 8
Timed = Callable[..., float]


def seconds_of(product: Callable[..., mx.array], *args: Any, times: int = 1) -> float:
    """What it takes to make a product [..., outputs] of `args` so many `times`, and to wait for
    all."""
    start = time.perf_counter()
    mx.eval([product(*args) for _ in range(times)])
    return time.perf_counter() - start


@cache
def measure_threshold(
    layer: LayerSpec, *, cpu: bool, tries: int = 5, timed: Timed = seconds_of
) -> int:
    """Query rows per KV head up to which the packed path is faster on this device, a `cpu` or a
    GPU.

    Times both paths with `timed` on random keys of this `layer`'s geometry, the best of `tries`,
    about 0.1 s on a CPU, once per process.
    """
    if layer.bits is None or layer.group_size is None:
        return 0
    extent, quick = (1024, _alone) if cpu else (GPU_EXTENT, _among_many)
    pool, noise = _random_pool(layer, extent)
    dtype = getattr(mx, layer.dtype)
    threshold = 1
    for width in (2, 4, 8, 16):
        queries = noise[:, :, :width].astype(dtype)
        times = {
            path: quick(tries, timed, _attended, pool, extent, queries, AttendPlan(path, 1.0))
            for path in _PATHS
        }
        if times["packed"] > times["dequantize"]:
            break
        threshold = width
    return threshold


@cache
def measure_launch_tokens(
    layer: LayerSpec, *, cpu: bool, tries: int = 7, timed: Timed = seconds_of
) -> int:
    """What one more slab costs a decode step of a `cpu` or a GPU, in tokens of padding read
    instead.

    A step over few keys of this `layer` is almost all launch; the rest of one over many is
    reading. The best of `tries`, as `timed` says, once per process.
    """
    extent, quick = (2048, _alone) if cpu else (GPU_EXTENT, _among_many)
    pool, noise = _random_pool(layer, extent)
    query, few = noise[:, :, :1].astype(getattr(mx, layer.dtype)), EXTENT_STEP
    codes = layer.bits is not None and layer.group_size is not None
    plan = AttendPlan("packed" if codes else "dequantize", 1.0)
    short, long = (
        quick(tries, timed, _attended, pool, keys, query, plan) for keys in (few, extent)
    )
    per_token = max(long - short, 1e-9) / (extent - few)
    return int(min(8192, max(few, (short - few * per_token) / per_token)))


@cache
def measure_parts(tries: int = 5, timed: Timed = seconds_of) -> bool:
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


def _alone(tries: int, timed: Timed, *product: Any) -> float:
    """Seconds of a product with its arguments, the best of `tries`, as `timed` says."""
    return min(timed(*product) for _ in range(tries))


def _among_many(tries: int, timed: Timed, *product: Any) -> float:
    """The same of one among many that are evaluated together: a GPU takes some microseconds, and
    to wait for it takes a hundred and more."""
    pairs = [(timed(*product), timed(*product, times=MANY)) for _ in range(tries)]
    one, many = min(alone for alone, _ in pairs), min(together for _, together in pairs)
    return max(0.0, many - one) / (MANY - 1)


def _attended(pool: Pool, extent: int, queries: mx.array, plan: AttendPlan) -> mx.array:
    return attend(queries, pool.read(1, extent), plan)


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
