"""The load-time probes: quantized products must be right on this device, and two ragged rows
must compute what each computes alone.

Some kernels are wrong for some shapes, and some model families are silently wrong when rows of
a batch stand at different positions. That is found here, not in a conversation. GPU thread.
"""

import functools
import itertools
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import mlx.core as mx

from kvactors.core.arena import Arena
from kvactors.core.errors import ProbeFailed
from kvactors.core.model import LoadedModel
from kvactors.core.pools import make_pool
from kvactors.core.spec import LayerSpec

__all__ = ["probe_products", "probe_ragged_rows"]

logger = logging.getLogger("kvactors")

# Kernels change with these; wrong ones were seen at such shapes (mlx #3480, #4250).
_KEYS = (1023, 1024, 4096)
_QUERIES = (1, 2, 3, 4, 8)
_SECONDS = 1.0
# Of the products' deviation. A GPU may round floats to 10 bits; one key too few is 3 %.
_PRODUCT_TOLERANCE = 0.01

# Deviations of the logits. Rounding may flip a 4-bit code, which moves logits by some
# percent of their deviation; a row read at a wrong position moves them by whole ones.
TOLERANCE = 0.3
_PROMPTS = ([1, 2, 3, 2, 1], [2, 3, 1, 1, 2, 3, 3, 2, 1])
_STEPS = (1, 2)


def probe_ragged_rows(loaded: LoadedModel) -> None:
    """Raise ProbeFailed unless a batch of two ragged rows agrees with each row alone."""
    try:
        together = _run(loaded, _PROMPTS)
        alone = [_run(loaded, [prompt])[0] for prompt in _PROMPTS]
    except Exception as error:
        raise ProbeFailed(
            f"the model cannot run over a batch cache ({type(error).__name__}: {error}); its "
            "attention may bypass mlx-lm's scaled_dot_product_attention"
        ) from error
    for row, (batched, single) in enumerate(zip(together, alone, strict=True)):
        deviation = float(mx.sqrt(mx.var(single)))
        difference = float(mx.abs(batched - single).max())
        if not difference <= TOLERANCE * max(deviation, 1e-6):
            raise ProbeFailed(
                f"row {row} of a ragged batch differs from the same row alone by {difference:.3g} "
                f"(deviation of the logits {deviation:.3g}): this model family is wrong with "
                "per-row offsets"
            )


def probe_products(loaded: LoadedModel) -> LoadedModel:
    """The model, pinned to dequantizing attention where this device's quantized products are
    wrong for its shapes. A probe takes a second at most, once per process, device and shapes."""
    layers = (layer for layer in loaded.spec.layers if layer.bits is not None)
    if not _wrong_products(
        str(mx.default_device()), tuple(dict.fromkeys(layers)), loaded.spec.context
    ):
        return loaded
    return replace(loaded, policy=replace(loaded.policy, mode="dequantize"))


@functools.cache
def _wrong_products(device: str, layers: tuple[LayerSpec, ...], context: int) -> tuple[str, ...]:
    """The shapes whose products differ from those of floats; warns of them, once."""
    begin, wrong = time.perf_counter(), []
    for name, product, expected in _products(layers, context):
        allowed = _PRODUCT_TOLERANCE * float(mx.sqrt(mx.var(expected)))
        if not float(mx.abs(product - expected).max()) <= allowed:
            wrong.append(name)
        if time.perf_counter() - begin > _SECONDS:
            break
    if wrong:
        logger.warning(
            "mx.quantized_matmul is wrong on %s; attention dequantizes instead, which is slower "
            "to decode. Wrong shapes: %s",
            device,
            "; ".join(wrong),
        )
    return tuple(wrong)


def _products(
    layers: tuple[LayerSpec, ...], context: int
) -> Iterator[tuple[str, mx.array, mx.array]]:
    """(shape, quantized product, product of floats) as attention asks for them, from a part of a
    slab: scores over keys, and sums over values."""
    extents = sorted({min(keys, context) for keys in _KEYS})
    for layer in layers:
        heads, longest = min(2, layer.kv_heads), extents[-1]
        group_size, bits = layer.group_size, layer.bits
        pool = make_pool(replace(layer, kv_heads=heads), 1, longest + 64)
        noise = _noise(heads, longest, layer.head_dim).astype(getattr(mx, layer.dtype))
        pool.write(noise, noise, [0], mx.arange(longest)[None])
        for keys, transposed in itertools.product(extents, (True, False)):
            codes, scales, biases = pool.keys(1, keys) if transposed else pool.values(1, keys)
            floats = mx.dequantize(
                codes,
                scales.astype(mx.float32),
                biases.astype(mx.float32),
                group_size=group_size,
                bits=bits,
            )
            floats = floats.swapaxes(-1, -2) if transposed else floats
            inner, outer = floats.shape[-2:]
            for queries in _QUERIES:
                asked = _noise(heads, queries, inner)
                product = mx.quantized_matmul(
                    asked, codes, scales, biases, transposed, group_size=group_size, bits=bits
                )
                order = "transposed" if transposed else "not transposed"
                name = f"{queries}x{inner}x{outer} {order}, {bits} bits"
                yield name, product, asked @ floats


def _noise(heads: int, tokens: int, width: int) -> mx.array:
    """Numbers between -1 and 1, [1, heads, tokens, width], the same ones every time."""
    return mx.random.uniform(-1, 1, (1, heads, tokens, width), key=mx.random.key(0))


def _run(loaded: LoadedModel, prompts: Any) -> list[mx.array]:
    """Prefill each prompt alone, join them, decode two steps; the last logits of each."""
    arena = Arena(loaded.spec, loaded.policy)
    for prompt in prompts:
        alone = Arena(loaded.spec, loaded.policy, max_slabs=1)
        alone.add_row(0, len(prompt))
        alone.forward(loaded.model, mx.array([prompt]))
        arena.take(alone, 0)
    order = sorted(range(len(prompts)), key=lambda row: arena.table.lengths[row])
    logits = mx.zeros(())
    for token in _STEPS:
        logits = arena.forward(loaded.model, mx.full((len(prompts), 1), token))
    rows = logits[:, -1].astype(mx.float32)
    mx.eval(rows)
    by_length = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    found = {index: rows[row] for index, row in zip(by_length, order, strict=True)}
    return [found[index] for index in range(len(prompts))]
