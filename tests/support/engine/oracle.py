"""The oracles that the engine is compared with: mlx-lm on one sequence, and float64 NumPy."""

from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models import base
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from kvactors.core.model.load import LoadedModel
from kvactors.core.quant.device import on_cuda

__all__ = ["free_run", "margins", "mlx_lm_caches", "numpy_attention", "prefill_noise"]


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
