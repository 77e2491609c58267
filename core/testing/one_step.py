"""One step of mlx-lm's own model over its own caches, from the bytes that a row of ours holds.

What the arithmetic of a step is compared with: whatever differs is in how we attend, not in what
is remembered. GPU thread.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, RotatingKVCache, make_prompt_cache

from kvactors.core.arena.arena import Arena
from kvactors.core.cache.spec import UNUSED, LayerSpec
from kvactors.core.model.load import LoadedModel
from kvactors.core.quant.codec import to_float

__all__ = ["one_step"]


def one_step(loaded: LoadedModel, arena: Arena, row: int) -> mx.array:
    """Logits [vocab] of token 7 behind what a `row` of `arena` holds, over mlx-lm's caches of the
    model `loaded`."""
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
