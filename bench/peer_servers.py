"""mlx-lm with many agents: as they arrive, and over turns whose prompt caches somebody keeps.

Functions that take a `model` first run in a process of their own (`peer_process`). What they give
returns seconds, and the tokens of all answers, agent by agent.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvactors.bench import peers

__all__ = ["arrivals", "rounds_by_hand", "rounds_from_files", "rounds_served"]

Found = tuple[float, list[int]]
# One round: what each agent is asked.
Round = Sequence[list[int]]


def arrivals(
    model: Any, prompts: Round, times: Sequence[float], decoded: int
) -> Callable[[], Found]:
    """mlx-lm's BatchGenerator of `model`, given these `prompts` at these `times` in seconds, until
    each has `decoded` tokens."""
    chunk = peers.best_chunk(model, max(prompts, key=len))

    def once() -> Found:
        answers: dict[int, list[int]] = {}
        options = {"completion_batch_size": len(prompts), "prefill_step_size": chunk}
        with peers.batch_generator(model, **options) as generator:
            begin, ended = time.perf_counter(), 0
            while ended < len(prompts):
                now = time.perf_counter() - begin
                while len(answers) < len(prompts) and times[len(answers)] <= now:
                    (uid,) = generator.insert([prompts[len(answers)]], [decoded])
                    answers[uid] = []
                if len(answers) > ended:
                    for response in generator.next()[1]:
                        answers[response.uid].append(response.token)
                        ended += bool(response.finish_reason)
            return time.perf_counter() - begin, list(chain.from_iterable(answers.values()))

    return once


def rounds_by_hand(model: Any, rounds: Sequence[Round], decoded: int) -> Callable[[], Found]:
    """mlx-lm's BatchGenerator of `model` with every agent's float prompt cache carried by hand,
    through all `rounds` of `decoded` tokens an answer, in the chunks that the `model` is fastest
    with."""
    chunk = _chunk(model, rounds)
    return lambda: _Carried(model, decoded, len(rounds[0]), chunk).run(rounds)


def rounds_served(
    model: Any, rounds: Sequence[Round], decoded: int, nbytes: int
) -> Callable[[], Found]:
    """The same through the prompt cache of mlx-lm's server, bounded to `nbytes`; `model`, `rounds`
    and `decoded` as above."""
    chunk = _chunk(model, rounds)
    return lambda: _Served(model, decoded, len(rounds[0]), chunk, nbytes=nbytes).run(rounds)


def rounds_from_files(
    model: Any, rounds: Sequence[Round], decoded: int, few: int
) -> Callable[[], Found]:
    """The same with every agent's float prompt cache of the `model` in a file of mlx-lm's own
    between its turns, and a `few` agents at once in memory; `rounds` and `decoded` as above."""
    chunk = _chunk(model, rounds)

    def once() -> Found:
        with TemporaryDirectory(prefix="kvactors-bench-") as folder:
            return _Filed(model, decoded, few, chunk, folder=Path(folder)).run(rounds)

    return once


def _chunk(model: Any, rounds: Sequence[Round]) -> int:
    """The best for what an agent was asked in all rounds."""
    return peers.best_chunk(model, list(chain.from_iterable(each[0] for each in rounds)))


@dataclass
class _Carried:
    """A BatchGenerator, given the agents of a round, `few` at once; caches are kept by hand."""

    model: Any
    decoded: int
    few: int
    chunk: int
    _histories: dict[int, list[int]] = field(default_factory=dict)
    _answers: dict[int, list[int]] = field(default_factory=dict)
    _caches: dict[int, Any] = field(default_factory=dict)

    def run(self, rounds: Sequence[Round]) -> Found:
        begin = time.perf_counter()
        for prompts in rounds:
            asked = list(enumerate(prompts))
            for first in range(0, len(asked), self.few):
                with peers.batch_generator(self.model, prefill_step_size=self.chunk) as generator:
                    self._ask(generator, asked[first : first + self.few])
        spent = time.perf_counter() - begin
        return spent, [token for agent in sorted(self._answers) for token in self._answers[agent]]

    def _ask(self, generator: Any, asked: Sequence[tuple[int, list[int]]]) -> None:
        running: dict[int, int] = {}
        for agent, prompt in asked:
            history = self._histories.setdefault(agent, [])
            history += prompt
            cache, rest = self._fetch(agent, history)
            caches = None if cache is None else [cache]
            (uid,) = generator.insert([rest], [self.decoded], caches=caches)
            running[uid] = agent
        while running:
            for response in generator.next()[1]:
                agent = running[response.uid]
                self._histories[agent].append(response.token)
                self._answers.setdefault(agent, []).append(response.token)
                if response.finish_reason:
                    self._keep(running.pop(response.uid), response.prompt_cache)

    def _fetch(self, agent: int, history: list[int]) -> tuple[Any, list[int]]:
        """The agent's cache, and the tokens that it lacks."""
        cache = self._caches.pop(agent, None)
        return cache, history[cache[0].offset :] if cache else list(history)

    def _keep(self, agent: int, cache: Any) -> None:
        self._caches[agent] = cache


@dataclass
class _Served(_Carried):
    """The same through the prompt cache of mlx-lm's server, bounded in bytes."""

    nbytes: int = 0

    def __post_init__(self) -> None:
        from mlx_lm.models.cache import LRUPromptCache

        self._lru = LRUPromptCache(max_size=1_000, max_bytes=self.nbytes)

    def _fetch(self, agent: int, history: list[int]) -> tuple[Any, list[int]]:
        cache, rest = self._lru.fetch_nearest_cache("model", list(history))
        return cache, list(rest)

    def _keep(self, agent: int, cache: Any) -> None:
        tokens = self._histories[agent][: cache[0].offset]
        self._lru.insert_cache("model", tokens, cache)


@dataclass
class _Filed(_Carried):
    """The same with caches in files, as mlx-lm saves them: not synced."""

    folder: Path = Path()

    def _fetch(self, agent: int, history: list[int]) -> tuple[Any, list[int]]:
        from mlx_lm.models.cache import load_prompt_cache

        path = self._path(agent)
        cache = load_prompt_cache(str(path)) if path.exists() else None
        return cache, history[cache[0].offset :] if cache else list(history)

    def _keep(self, agent: int, cache: Any) -> None:
        from mlx_lm.models.cache import save_prompt_cache

        save_prompt_cache(str(self._path(agent)), cache)

    def _path(self, agent: int) -> Path:
        return self.folder / f"{agent}.safetensors"
