"""The load-time probe of the device: quantized products must be those of floats.

Some kernels are wrong for some shapes. That is found here, not in a conversation. GPU thread.
"""

import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from kvactors.core.arena.cells import Cells
from kvactors.core.arena.pools import Pool
from kvactors.core.attention.fused_cuda import attend_fused, fits
from kvactors.core.attention.plan import AttendPlan
from kvactors.core.cache.spec import LayerSpec, Side
from kvactors.core.model.load import LoadedModel, stated_heads
from kvactors.core.quant.codec import PRECISION, Stored
from kvactors.core.quant.device import on_cpu, on_cuda
from kvactors.core.quant.products import multiply_codes

__all__ = ["MOST_KEYS", "PROBE_SECONDS", "PRODUCT_TOLERANCE", "probe_products", "product_errors"]

logger = logging.getLogger(__name__)

# Kernels change with these; wrong ones were seen at such shapes (mlx #3480, #4250). Metal has
# others beyond 8,192 keys, and for 6 to 33 queries, by the chip.
_KEYS, MOST_KEYS = (1023, 1024, 4096), 8256
_QUERIES, _MANY = (1, 2, 3, 4, 8), 16
PROBE_SECONDS = 1.0
# Where each kernel of ours has to be compiled.
_CUDA_SECONDS = 10.0
PRODUCT_TOLERANCE = 0.01
"""Of the products' deviation. A GPU may round floats to 10 bits; one key too few is 3 %."""


def probe_products(
    loaded: LoadedModel,
    *,
    seconds: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
    product: Callable[..., mx.array] | None = None,
) -> LoadedModel:
    """The `loaded` model, pinned to dequantizing attention where this device's quantized products
    are wrong for its shapes. A probe takes so many `seconds` of `clock` at most (one, or ten where
    kernels are compiled for it), once per process, device and shapes. `product`: another one than
    the device's, of [..., M, K] and codes of [..., N, K] to [..., M, N]."""
    layers = (layer for layer in loaded.spec.layers if not layer.plain and layer.kv_heads)
    shapes = tuple(dict.fromkeys(layers)), loaded.spec.context, stated_heads(loaded.model)
    device = str(mx.default_device()), mx.quantized_matmul, attend_fused
    seconds = seconds or (_CUDA_SECONDS if on_cuda() else PROBE_SECONDS)
    if not _wrong_products(device, shapes, product, seconds, clock):
        return loaded
    return replace(loaded, policy=replace(loaded.policy, mode="dequantize"))


@functools.cache
def _wrong_products(
    device: tuple[str, Any, Any],
    shapes: tuple[tuple[LayerSpec, ...], int, int | None],
    multiply: Callable[..., mx.array] | None,
    seconds: float,
    clock: Callable[[], float],
) -> tuple[str, ...]:
    """The shapes whose products differ from those of floats; warns of them, once."""
    begin, wrong = clock(), []
    layers, context, heads = shapes
    for name, error in product_errors(layers, context, multiply, heads=heads):
        if not error <= PRODUCT_TOLERANCE:
            wrong.append(name)
        if clock() - begin > seconds:
            break
    if wrong:
        logger.warning(
            "products with codes are wrong on %s; attention dequantizes instead, which is slower "
            "to decode. Wrong shapes: %s",
            device[0],
            "; ".join(wrong),
        )
    return tuple(wrong)


def product_errors(
    layers: Sequence[LayerSpec],
    context: int,
    multiply: Callable[..., mx.array] | None = None,
    *,
    heads: int | None = None,
) -> Iterator[tuple[str, float]]:
    """(shape, the most by which a quantized product differs from that of floats, in deviations of
    the latter), one after the other, as attention over such `layers` asks for them with up to
    `context` keys: [..., M, K] and codes of [..., N, K] that `multiply` takes, unless it is the
    device that does. Not a number where a product is none. A kernel of ours is asked with the
    queries of a model that has so many `heads`, if that is known."""
    if multiply is None and on_cuda():
        found = _attended(layers, context, heads)
    else:
        found = _products(layers, context, multiply or multiply_codes)
    for name, product, expected in found:
        yield name, float(mx.abs(product - expected).max() / mx.sqrt(mx.var(expected)))


def _products(
    layers: Sequence[LayerSpec], context: int, multiply: Callable[..., mx.array]
) -> Iterator[tuple[str, mx.array, mx.array]]:
    """(shape, quantized product, product of floats) as attention asks for them, from a part of a
    slab: scores over keys, and sums over values."""
    cpu = on_cpu()
    for layer in layers:
        heads, extents = min(2, layer.kv_heads), _extents(context)
        pool = _random_pool(layer, heads, extents[-1])
        for keys, (transposed, side) in itertools.product(
            extents, zip((True, False), layer.sides, strict=True)
        ):
            if side.bits is None:
                continue
            stored = pool.read(1, keys)
            codes = stored.keys if transposed else stored.values
            floats = _floats(codes, side)
            floats = floats.swapaxes(-1, -2) if transposed else floats
            inner, outer = floats.shape[-2:]
            for queries in _QUERIES if cpu else (*_QUERIES, _MANY):
                asked = _noise(heads, queries, inner)
                product = multiply(asked, codes, side, transposed=transposed)
                order = "transposed" if transposed else "not transposed"
                name = f"{queries}x{inner}x{outer} {order}, {side.bits} bits"
                yield name, product, asked @ floats


def _attended(
    layers: Sequence[LayerSpec], context: int, heads: int | None
) -> Iterator[tuple[str, mx.array, mx.array]]:
    """(shape, attention over codes by our own kernels, over floats), where there are kernels: of
    decode steps of a model with so many `heads`, and of more queries."""
    extents = _extents(context)
    pools = [(each, _random_pool(each, min(2, each.kv_heads), extents[-1])) for each in layers]
    for extent, queries, (layer, pool) in itertools.product(extents, (1, _MANY), pools):
        stored = pool.read(1, extent)
        if not fits(stored):
            continue
        repeats = (heads or 0) // layer.kv_heads or 1
        keys, values = (
            _floats(codes, side).squeeze(0)
            for codes, side in zip((stored.keys, stored.values), layer.sides, strict=True)
        )
        keys, values = (mx.repeat(each, repeats, axis=1) for each in (keys, values))
        asked = _noise(keys.shape[1], queries, layer.head_dim).astype(getattr(mx, layer.dtype))
        # Few keys have all the weight, so that what is found is no mean, which a dtype would round.
        plan = AttendPlan("packed", 2.0)
        scores = plan.scale * asked.astype(PRECISION) @ keys.swapaxes(-1, -2)
        found = attend_fused(asked, stored, plan).astype(PRECISION)
        name = f"{queries}x{layer.head_dim} over {extent} keys, {layer.bits} bits"
        yield name, found, mx.softmax(scores, axis=-1, precise=True) @ values


def _extents(context: int) -> list[int]:
    """Numbers of keys to look at, of a model of so many positions."""
    return sorted({min(keys, context) for keys in (_KEYS if on_cpu() else (*_KEYS, MOST_KEYS))})


def _random_pool(layer: LayerSpec, heads: int, tokens: int) -> Pool:
    """So many tokens of a `layer` with so many heads, in a slab that has room for more."""
    pool, dtype = Pool(replace(layer, kv_heads=heads), 1, tokens + 64), getattr(mx, layer.dtype)
    keys, values = (_noise(heads, tokens, side.dim).astype(dtype) for side in layer.sides)
    pool.write(keys, values, Cells(mx.arange(tokens)[None], 0))
    return pool


def _floats(stored: Stored, side: Side) -> mx.array:
    """By MLX's own hand, whatever `kvactors.core.quant` makes of it."""
    codes, scales, biases = stored
    scales, biases = scales.astype(PRECISION), biases.astype(PRECISION)
    return mx.dequantize(codes, scales, biases, group_size=side.group_size, bits=side.bits)


def _noise(heads: int, tokens: int, width: int) -> mx.array:
    """Numbers between -1 and 1, [1, heads, tokens, width], the same ones every time."""
    return mx.random.uniform(-1, 1, (1, heads, tokens, width), key=mx.random.key(0))
