"""What kvactors is measured against: mlx-lm as its users use it, and bare loops of the model.

Functions that take a `model` first and give a function run in a process of their own
(`peer_process`). `Bare` runs on the calling thread, over `Setup.loaded`.
"""
# ruff: noqa: E402

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from kvactors.core import blas

# MLX must find OpenBLAS already loaded.
blas.preload()

import mlx.core as mx
import numpy as np
from mlx_lm.generate import BatchGenerator, generate_step, maybe_quantize_kv_cache
from mlx_lm.models.cache import make_prompt_cache

from kvactors.bench.busy_threads import busy_threads
from kvactors.bench.setup import FIRST
from kvactors.core.arena.compiled.compiler import StepCompiler
from kvactors.core.engine.runner import new_arena
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.scheduler import Scheduler, SchedulerConfig
from kvactors.core.testing.engines import make_request

__all__ = [
    "DEFAULT_CHUNK",
    "Bare",
    "batch_generator",
    "batch_steps",
    "best_chunk",
    "empty_float",
    "fastest",
    "fill",
    "prefill",
    "prefill_peak",
    "single_steps",
]

# More than any measurement decodes: no sequence leaves mlx-lm's batch by itself.
ENDLESS = 1_000_000
BITS = 4
GROUP = 64
# mlx-lm's own chunk, and those that are tried for the best one, on so many tokens.
DEFAULT_CHUNK = 2048
CHUNKS = (512, 1024, DEFAULT_CHUNK)
TRIED = 2048

# Seconds, and the tokens that were decoded.
Found = tuple[float, list[int]]


def engine_chunks(tokens: int, longest: int) -> list[int]:
    """The chunks, of `longest` tokens at most, in which the engine prefills so many tokens while
    nobody decodes: all but the last one, whose step gives the first token."""
    scheduler, sizes = Scheduler(SchedulerConfig(longest_chunk=longest)), []
    request = make_request("a", [], [0] * tokens, FIRST)
    while request.remaining:
        size = scheduler.plan([request], []).prefill[0].tokens
        request.cached += size
        sizes.append(size)
    return sizes


def empty_float(model: Any) -> list[Any]:
    """mlx-lm's float caches of a `model`, as it makes them for its users."""
    return list(make_prompt_cache(model))


def _quantized(cache: Sequence[Any]) -> list[Any]:
    """A float cache as mlx-lm quantizes it."""
    found = list(cache)
    maybe_quantize_kv_cache(found, 0, GROUP, BITS)
    return found


def fill(model: Any, tokens: Sequence[int], cache: list[Any], chunk: int = DEFAULT_CHUNK) -> int:
    """The token of `model` after `tokens`, which are prefilled into `cache` as `generate_step`
    does: all but the last one in pieces of a `chunk`, then the last one."""
    for begin in range(0, len(tokens) - 1, chunk):
        model(mx.array([tokens[begin : min(begin + chunk, len(tokens) - 1)]]), cache=cache)
        mx.eval([layer.state for layer in cache])
    return _token(_greedy(model(mx.array([tokens[-1:]]), cache=cache)))


def _greedy(logits: mx.array) -> mx.array:
    return mx.argmax(logits[:, -1], axis=-1)


def _token(found: mx.array) -> int:
    [token] = np.array(found).tolist()
    return int(token)


def best_chunk(model: Any, tokens: Sequence[int]) -> int:
    """The chunk in which mlx-lm's `model` prefills the beginning of `tokens` fastest, here."""

    def seconds(chunk: int) -> float:
        begin = time.perf_counter()
        fill(model, tokens[:TRIED], empty_float(model), chunk)
        return time.perf_counter() - begin

    return fastest(CHUNKS, seconds)


def fastest(choices: Sequence[int], seconds: Callable[[int], float]) -> int:
    """The one of `choices` that takes the fewest `seconds`. What a new process has to pay for at
    first, kernels and buffers, is charged to none."""
    seconds(choices[0])
    return min(choices, key=seconds)


def prefill(model: Any, tokens: Sequence[int], *, quantize: bool) -> Callable[[], Found]:
    """Seconds of `model` to the token after `tokens` over a float cache, in mlx-lm's best chunks;
    `quantize` has that quantized afterwards."""
    chunk = best_chunk(model, tokens)

    def once() -> Found:
        begin, cache = time.perf_counter(), empty_float(model)
        token = fill(model, tokens, cache, chunk)
        if quantize:
            mx.eval([layer.state for layer in _quantized(cache)])
        return time.perf_counter() - begin, [token]

    return once


def prefill_peak(model: Any, tokens: Sequence[int], chunk: int) -> Callable[[], Found]:
    """MLX's peak, in bytes above the `model`, of a prefill of `tokens` over a float cache, so many
    in a `chunk`."""

    def once() -> Found:
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        token = fill(model, tokens, empty_float(model), chunk)
        return mx.get_peak_memory() - before, [token]

    return once


def _remembering(model: Any, prompt: Sequence[int]) -> tuple[list[Any], int]:
    """A float cache of `prompt`, and the token that was answered to it."""
    cache = empty_float(model)
    return cache, fill(model, prompt, cache)


def single_steps(
    model: Any, prompt: Sequence[int], *, quantize: bool, busy: int = 0
) -> Callable[[int], Found]:
    """Seconds a token of mlx-lm's `generate_step` of `model` after `prompt`, over a float cache or,
    with `quantize`, a quantized one, beside `busy` threads that compute in Python."""
    cache, answered = _remembering(model, prompt)
    cache = _quantized(cache) if quantize else cache

    def once(decoded: int) -> Found:
        steps = generate_step(
            mx.array([answered, 1]), model, max_tokens=decoded + 1, prompt_cache=deepcopy(cache)
        )
        with busy_threads(busy):
            tokens = [next(steps)[0]]
            begin = time.perf_counter()
            tokens += [token for token, _ in steps]
            spent = time.perf_counter() - begin
        return spent / decoded, tokens

    return once


@contextmanager
def batch_generator(model: Any, **options: Any) -> Iterator[Any]:
    """mlx-lm's BatchGenerator."""
    generator = BatchGenerator(model, **options)
    try:
        yield generator
    finally:
        generator.close()


def batch_steps(model: Any, prompts: Sequence[Sequence[int]]) -> Callable[[int], Found]:
    """Seconds a step of mlx-lm's BatchGenerator of `model` over float caches of these `prompts`,
    which it copies, and the tokens of its last row."""
    caches, answers = zip(*(_remembering(model, prompt) for prompt in prompts), strict=True)
    count = len(prompts)

    def once(decoded: int) -> Found:
        sizes = {"prefill_batch_size": count, "completion_batch_size": count}
        with batch_generator(model, **sizes) as generator:
            asked = [[token, 1] for token in answers]
            uids = generator.insert(asked, [ENDLESS] * count, caches=list(caches))
            tokens: list[int] = []

            def step() -> int:
                found = generator.next()[1]
                tokens.extend(each.token for each in found if each.uid == uids[-1])
                return len(found)

            while step() < count:
                pass
            begin = time.perf_counter()
            for _ in range(decoded):
                assert step() == count
            return (time.perf_counter() - begin) / decoded, tokens

    return once


class Bare:
    """The engine's own cache, model and replays without engine, scheduler and actors: one row of
    `tokens`, prefilled by the model that is `loaded` as the engine does it, or in pieces of a
    `chunk`."""

    def __init__(
        self, loaded: LoadedModel, tokens: Sequence[int], chunk: int | None = None
    ) -> None:
        self._model = loaded.model
        self._steps = StepCompiler(loaded.model, traced=not loaded.eager)
        self.arena = new_arena(loaded)
        self.arena.floats = True
        self.arena.add_row(0, len(tokens))
        done = 0
        most = len(tokens) - 1
        sizes = (
            [min(chunk, most - begin) for begin in range(0, most, chunk)]
            if chunk
            else engine_chunks(len(tokens), loaded.longest_chunk)
        )
        for size in [*sizes, 1]:
            last = self._ahead(tokens[done : done + size])
            self.arena.evaluate()
            done += size
        assert done == len(tokens)
        self._answered = _token(last)

    def forward(self, tokens: Sequence[int]) -> Found:
        """Seconds of a greedy forward over the token that was answered and these, and the next;
        they are taken back."""
        length = self.arena.table.lengths[0]
        begin = time.perf_counter()
        token = _token(self._ahead([self._answered, *tokens]))
        spent = time.perf_counter() - begin
        self.arena.evaluate()
        self.arena.table.set_length(0, length)
        return spent, [token]

    def step(self, decoded: int) -> Found:
        """Seconds a token of a greedy loop behind one more token, one step ahead as every generator
        runs, and the tokens."""
        length = self.arena.table.lengths[0]
        token, tokens = self._ahead([self._answered, 1]), list[int]()
        begin = time.perf_counter()
        for _ in range(decoded):
            logits, _ = self._steps.step(self.arena, token)
            following = mx.argmax(logits, axis=-1)
            mx.async_eval(following)  # type: ignore[no-untyped-call]
            tokens.append(_token(token))
            token = following
        spent = (time.perf_counter() - begin) / decoded
        tokens.append(_token(token))
        self.arena.table.set_length(0, length)
        return spent, tokens

    def _ahead(self, tokens: Sequence[int]) -> mx.array:
        following = _greedy(self.arena.forward(self._model, mx.array([list(tokens)])))
        mx.async_eval(following)  # type: ignore[no-untyped-call]
        return following
