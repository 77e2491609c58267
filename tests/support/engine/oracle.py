"""The oracles that the engine is compared with: mlx-lm on one sequence, and float64 NumPy."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models import base
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from kvactors.core.arena.arena import Arena
from kvactors.core.cache.spec import UNUSED, LayerSpec
from kvactors.core.model.load import LoadedModel
from kvactors.core.quant.codec import to_float
from kvactors.core.quant.device import on_cuda

__all__ = ["free_run", "margins", "mlx_lm_caches", "numpy_attention", "one_step", "prefill_noise"]


class ProductsOfFloats(ModuleType):
    """`mlx.core` as mlx-lm's attention sees it where MLX has no product with a part of a cache's
    codes, as in its CUDA build: they become floats first."""

    def __getattr__(self, name: str) -> Any:
        return getattr(mx, name)

    @staticmethod
    def quantized_matmul(
        x: mx.array,
        codes: mx.array,
        scales: mx.array,
        biases: mx.array,
        *,
        transpose: bool,
        **form: Any,
    ) -> mx.array:
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
        wide = mx.dequantize(codes, scales, biases, **form)
        product = x.astype(mx.float32) @ (wide.swapaxes(-1, -2) if transpose else wide)
        return product.astype(x.dtype)


def mlx_lm_caches(loaded: LoadedModel) -> list[Any]:
    """mlx-lm's own caches of one sequence, at the bits of the spec."""
    if on_cuda():
        base.mx = ProductsOfFloats("mlx.core")
    return [
        KVCache()
        if layer.bits is None
        else QuantizedKVCache(group_size=layer.group_size or 64, bits=layer.bits)
        for layer in loaded.spec.layers
    ]


def free_run(
    loaded: LoadedModel, prompt: list[int], tokens: int, chunk: int = 1 << 20
) -> tuple[list[int], list[mx.array]]:
    """Greedy tokens of mlx-lm alone, and the float32 logits that chose each."""
    caches = mlx_lm_caches(loaded)
    for start in range(0, len(prompt) - 1, chunk):
        part = prompt[start : min(start + chunk, len(prompt) - 1)]
        mx.eval(loaded.model(mx.array([part]), cache=caches))
    token, chosen, logits = prompt[-1], [], []
    for _ in range(tokens):
        row = loaded.model(mx.array([[token]]), cache=caches)[0, -1].astype(mx.float32)
        token = int(mx.argmax(row))
        chosen.append(token)
        logits.append(row)
    return chosen, logits


def margins(logits: list[mx.array]) -> list[float]:
    """Distance of the top two logits at each step."""
    tops = [mx.sort(row)[-2:] for row in logits]
    return [float(top[1] - top[0]) for top in tops]


def prefill_noise(loaded: LoadedModel, prompt: list[int], logits: mx.array) -> float:
    """How far two ways of prefilling that mlx-lm itself offers move the first logits.

    Whole against chunks: a last-bit difference may flip 4-bit codes.
    """
    differences = [
        float(mx.abs(free_run(loaded, prompt, 1, chunk)[1][0] - logits).max())
        for chunk in (1, 7, 64)
    ]
    return max(differences)


def numpy_attention(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float, offset: int
) -> np.ndarray:
    """Causal attention in float64: queries [heads, T, dim] at positions offset + t."""
    heads, tokens, _ = queries.shape
    repeats = heads // keys.shape[0]
    out = np.zeros((heads, tokens, values.shape[-1]))
    for head in range(heads):
        k, v = keys[head // repeats], values[head // repeats]
        for t in range(tokens):
            seen = offset + t + 1
            scores = k[:seen].astype(np.float64) @ queries[head, t].astype(np.float64) * scale
            weights = np.exp(scores - scores.max())
            out[head, t] = weights / weights.sum() @ v[:seen].astype(np.float64)
    return out


def one_step(loaded: LoadedModel, arena: Arena, row: int) -> mx.array:
    """Logits of token 7 behind what a row holds, over mlx-lm's caches."""
    caches = make_prompt_cache(loaded.model)
    flat: list[Any] = []
    nesting = loaded.spec.nesting or (0,) * len(caches)
    for cache, count in zip(caches, nesting, strict=True):
        if count == UNUSED:
            continue
        flat += cache.caches if isinstance(cache, CacheList) else [cache]
    length = arena.table.lengths[row]
    piece = arena.export(row, 0, length)
    for group, arrays in zip(loaded.spec.groups(), piece.groups, strict=True):
        for position, index in enumerate(group):
            _fill(flat[index], loaded.spec.layers[index], arrays, position, length)
    logits: mx.array = loaded.model(mx.array([[7]]), cache=caches)[0, -1]
    return logits.astype(mx.float32)


def _fill(cache: Any, layer: LayerSpec, arrays: Any, position: int, length: int) -> None:
    """Put what a layer stores of a row into an mlx-lm cache, in float."""
    if isinstance(cache, ArraysCache):
        for index in range(len(layer.states)):
            cache[index] = arrays[f"s{index}"][position][None]
        return
    sides = []
    for place, (prefix, side) in enumerate(zip("kv", layer.sides, strict=True)):
        if side.dim == 0:
            sides.append(mx.zeros((1, layer.kv_heads, length, 0)))
            continue
        own = [array for name, array in arrays.items() if name.startswith(f"{prefix}.")]
        stored = [array[position, 0] for array in own] or [
            array[position, place] for array in arrays.values()
        ]
        sides.append(to_float(tuple(stored), side)[None])
    cache.keys, cache.values = sides
    cache.offset = length
    if isinstance(cache, RotatingKVCache):
        # With where it writes next: behind what it holds.
        held = cache.keys.shape[2]
        cache.state = (*sides, length, cache.keep, cache.max_size, held)
    _quantize_what_follows(cache, layer)


def _quantize_what_follows(cache: Any, layer: LayerSpec) -> None:
    """New tokens are attended as they are stored."""
    update: Callable[..., Any] = cache.update_and_fetch

    def quantized(*arrays: mx.array) -> Any:
        return update(
            *(
                array
                if side.bits is None
                else to_float(mx.quantize(array, side.group_size, side.bits), side)
                for array, side in zip(arrays, layer.sides, strict=True)
            )
        )

    cache.update_and_fetch = quantized
