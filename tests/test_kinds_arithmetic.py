"""Tier 2 of exactness for every kind: one step from identical cache bytes, against mlx-lm's own
float caches that hold what ours stores, dequantized. At most 1e-4 of the logits' deviation."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, RotatingKVCache, make_prompt_cache

from kvactors.bench.tiny import build
from kvactors.core.arena import Arena
from kvactors.core.model import LoadedModel, load_model
from kvactors.core.options import ModelOptions
from kvactors.core.pools import to_float
from kvactors.core.spec import LayerSpec
from kvactors.core.testing import PlainTokenizer

LIMIT = 1e-4
LENGTHS = (3, 40, 300)
FAMILIES = (
    "qwen3",
    "deepseek_v2",
    "gemma3_text",
    "gpt_oss",
    "gemma2",
    "deepseek_v3",
    "gemma3n",
    "qwen3_moe",
    "mamba2",
    "qwen3_next",
    "lfm2",
    "baichuan_m1",
    "recurrent_gemma",
)


@pytest.mark.parametrize("attention", ["packed", "dequantize"])
@pytest.mark.parametrize("family", FAMILIES)
def test_one_step_from_the_same_bytes_agrees_with_mlx_lm(family: str, attention: str) -> None:
    options = ModelOptions(attention=attention)
    loaded = load_model(lambda: (build(family), PlainTokenizer()), options)
    rng = np.random.default_rng(0)
    arena = Arena(loaded.spec, loaded.policy)
    order: list[int] = []
    for index, length in enumerate(LENGTHS):
        alone = Arena(loaded.spec, loaded.policy)
        alone.add_row(0, length)
        prompt = rng.integers(1, 128, length).tolist()
        for start in range(0, length, 200):
            alone.forward(loaded.model, mx.array([prompt[start : start + 200]]))
            alone.evaluate()
        order.insert(arena.take(alone, 0), index)
    apart = [one_step(loaded, arena, row) for row in range(len(LENGTHS))]

    together = arena.forward(loaded.model, mx.array([[7]] * len(LENGTHS)))[:, -1]

    for ours, theirs in zip(together, apart, strict=True):
        deviation = float(mx.sqrt(mx.var(theirs)))
        assert float(mx.abs(ours - theirs).max()) <= LIMIT * deviation
    assert float(mx.abs(together[0] - together[1]).max()) > LIMIT


def one_step(loaded: LoadedModel, arena: Arena, row: int) -> mx.array:
    """Logits of token 7 behind what a row holds, over mlx-lm's caches."""
    caches = make_prompt_cache(loaded.model)
    flat: list[Any] = []
    for cache in caches:
        flat += cache.caches if isinstance(cache, CacheList) else [cache]
    length = arena.table.lengths[row]
    piece = arena.export(row, 0, length)
    for group, arrays in zip(loaded.spec.groups(), piece.groups, strict=True):
        for position, index in enumerate(group):
            fill(flat[index], loaded.spec.layers[index], arrays, position, length)
    return loaded.model(mx.array([[7]]), cache=caches)[0, -1].astype(mx.float32)


def fill(cache: Any, layer: LayerSpec, arrays: Any, position: int, length: int) -> None:
    """Put what a layer stores of a row into an mlx-lm cache, in float."""
    if isinstance(cache, ArraysCache):
        for index in range(len(layer.states)):
            cache[index] = arrays[f"s{index}"][position][None]
        return
    sides = []
    for place, (prefix, side) in enumerate(zip("kv", layer.sides, strict=True)):
        own = [array for name, array in arrays.items() if name.startswith(f"{prefix}.")]
        stored = [array[position, 0] for array in own] or [
            array[position, place] for array in arrays.values()
        ]
        sides.append(to_float(tuple(stored), side)[None])
    cache.keys, cache.values = sides
    cache.offset = length
    if isinstance(cache, RotatingKVCache):
        cache._idx = cache.keys.shape[2]
    quantize_what_follows(cache, layer)


def quantize_what_follows(cache: Any, layer: LayerSpec) -> None:
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
