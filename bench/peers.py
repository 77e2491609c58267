"""What kvactors is measured against: mlx-lm's generators and caches, and bare model loops.

Everything here runs on the calling thread, over `Setup.loaded`.
"""
# ruff: noqa: E402

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kvactors.core import blas

# MLX must find OpenBLAS already loaded.
blas.preload()

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, generate_step
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from kvactors.bench.setup import FIRST
from kvactors.core.engine.runner import new_arena
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.scheduler import Scheduler
from kvactors.core.testing.engines import make_request

__all__ = [
    "ENDLESS",
    "Bare",
    "batch_generator",
    "batch_step",
    "empty_float",
    "empty_quantized",
    "engine_chunks",
    "float_cache",
    "quantized",
    "quantized_step",
    "timed_prefill",
]

# More than any measurement decodes: no sequence leaves mlx-lm's batch by itself.
ENDLESS = 1_000_000
BITS = 4
GROUP = 64


def engine_chunks(tokens: int) -> list[int]:
    """The chunks in which the engine prefills so many tokens while nobody decodes."""
    scheduler, sizes = Scheduler(), []
    request = make_request("a", [], [0] * tokens, FIRST)
    while request.remaining:
        size = scheduler.plan([request], []).prefill[0].tokens
        request.cached += size
        sizes.append(size)
    return sizes


def timed_prefill(model: Any, tokens: Sequence[int], cache: list[Any]) -> float:
    """Seconds of `model` to the token after `tokens`, behind `cache`: all but the last in the
    engine's chunks, then the last."""
    begin = time.perf_counter()
    _fill(model, tokens[:-1], cache)
    mx.eval(mx.argmax(model(mx.array([tokens[-1:]]), cache=cache)[:, -1], axis=-1))
    return time.perf_counter() - begin


def _fill(model: Any, tokens: Sequence[int], cache: list[Any]) -> None:
    done = 0
    for size in engine_chunks(len(tokens)):
        model(mx.array([tokens[done : done + size]]), cache=cache)
        mx.eval([layer.state for layer in cache])
        done += size


def float_cache(model: Any, tokens: Sequence[int]) -> list[Any]:
    """mlx-lm's float cache of these tokens."""
    cache = empty_float(model)
    _fill(model, tokens, cache)
    return cache


def empty_float(model: Any) -> list[Any]:
    """mlx-lm's float cache of every layer."""
    return [KVCache() for _ in model.layers]


def empty_quantized(model: Any) -> list[Any]:
    """mlx-lm's QuantizedKVCache of every layer."""
    return [QuantizedKVCache(group_size=GROUP, bits=BITS) for _ in model.layers]


def quantized(cache: Sequence[Any]) -> list[Any]:
    """A float cache as mlx-lm quantizes it."""
    return [layer.to_quantized(group_size=GROUP, bits=BITS) for layer in cache]


def quantized_step(model: Any, cache: list[Any], decoded: int) -> float:
    """Seconds a token, of `decoded`, of mlx-lm's `generate_step` of `model` over its own quantized
    cache."""
    steps = generate_step(
        mx.array([1]), model, max_tokens=decoded + 1, prompt_cache=cache, kv_bits=BITS
    )
    next(steps)
    begin = time.perf_counter()
    count = sum(1 for _ in steps)
    spent = time.perf_counter() - begin
    for layer in cache:
        layer.trim(count + 1)
    return spent / count


@contextmanager
def batch_generator(model: Any, **options: Any) -> Iterator[Any]:
    """mlx-lm's BatchGenerator."""
    generator = BatchGenerator(model, **options)
    try:
        yield generator
    finally:
        generator.close()


def batch_step(model: Any, caches: Sequence[list[Any]], decoded: int) -> float:
    """Seconds a step, of `decoded`, of mlx-lm's BatchGenerator of `model` over these float caches,
    which it copies."""
    count = len(caches)
    with batch_generator(model, prefill_batch_size=count, completion_batch_size=count) as generator:
        generator.insert([[1]] * count, [ENDLESS] * count, caches=list(caches))
        while len(generator.next()[1]) < count:
            pass
        begin = time.perf_counter()
        for _ in range(decoded):
            assert len(generator.next()[1]) == count
        return (time.perf_counter() - begin) / decoded


class Bare:
    """The engine's own cache and model without engine, scheduler and actors: one row."""

    def __init__(self, loaded: LoadedModel, tokens: Sequence[int]) -> None:
        self._model = loaded.model
        self.arena = new_arena(loaded)
        self.arena.floats = True
        self.arena.add_row(0, len(tokens))
        done = 0
        for size in engine_chunks(len(tokens)):
            self.arena.forward(self._model, mx.array([tokens[done : done + size]]))
            self.arena.evaluate()
            done += size

    def forward(self, tokens: Sequence[int]) -> float:
        """Seconds of a greedy forward over these tokens; they are taken back."""
        length = self.arena.table.lengths[0]
        begin = time.perf_counter()
        logits = self.arena.forward(self._model, mx.array([list(tokens)]))
        mx.eval(mx.argmax(logits[:, -1], axis=-1))
        spent = time.perf_counter() - begin
        self.arena.evaluate()
        self.arena.table.set_length(0, length)
        return spent

    def step(self, decoded: int) -> float:
        """Seconds a token of a greedy loop, one step ahead as every generator runs."""
        length = self.arena.table.lengths[0]
        token = self._ahead(mx.array([1]))
        begin = time.perf_counter()
        for _ in range(decoded):
            following = self._ahead(token)
            token.item()
            token = following
        spent = (time.perf_counter() - begin) / decoded
        mx.eval(token)
        self.arena.table.set_length(0, length)
        return spent

    def _ahead(self, token: mx.array) -> mx.array:
        following = mx.argmax(self.arena.forward(self._model, token[:, None])[:, -1], axis=-1)
        mx.async_eval(following)  # type: ignore[no-untyped-call]
        return following
