"""Regimes of many agents that come, take turns and share memory: total times."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from kvactors.actors import AgentSystem, Sampling
from kvactors.bench import peers
from kvactors.bench.setup import Setup, answer
from kvactors.bench.table.regime import Regime

__all__ = ["REGIMES"]

Pairs = Iterator[tuple[float, float]]
# One round: what each agent is asked.
Round = Sequence[list[int]]
TURNS = 10
TURN_TOKENS = 200
SEVERAL = 32
ANSWER = 32


def staggered(setup: Setup) -> Pairs:
    """32 agents with prompts of 50 to 2,000 tokens arrive one after the other, four within the
    time that one prompt of 1,000 tokens takes, and decode 64 tokens each: from the first arrival
    to the last token, against mlx-lm's BatchGenerator given the same arrivals."""
    several = setup.scale.number(SEVERAL)
    lengths = np.random.default_rng(0).integers(50, 2001, several)
    prompts = [setup.prompt(setup.scale.tokens(int(n)), i) for i, n in enumerate(lengths)]
    decoded = min(64, 2 * setup.scale.decoded)
    with setup.system(max_batch=several) as system:
        answer(system.spawn("first"), prompts[0])
        pause = answer(system.spawn("pace"), setup.prompt(setup.scale.tokens(1000)))
        arrivals = [index * pause.timing.first_token / 4 for index in range(several)]
        while True:
            ours = _our_arrivals(system, prompts, arrivals, decoded)
            yield ours, _their_arrivals(setup.model, prompts, arrivals, decoded)


def _our_arrivals(
    system: AgentSystem, prompts: Round, arrivals: Sequence[float], decoded: int
) -> float:
    agents = [system.spawn(f"agent {index}") for index in range(len(prompts))]
    begin, futures = time.perf_counter(), []
    for agent, prompt, arrival in zip(agents, prompts, arrivals, strict=True):
        time.sleep(max(0.0, begin + arrival - time.perf_counter()))
        futures.append(agent.ask(prompt, sampling=Sampling(max_tokens=decoded)))
    for future in futures:
        future.get()
    spent = time.perf_counter() - begin
    for agent in agents:
        system.forget(agent.agent_id)
    return spent


def _their_arrivals(model: Any, prompts: Round, arrivals: Sequence[float], decoded: int) -> float:
    with peers.batch_generator(model, completion_batch_size=len(prompts)) as generator:
        begin, inserted, ended = time.perf_counter(), 0, 0
        while ended < len(prompts):
            now = time.perf_counter() - begin
            while inserted < len(prompts) and arrivals[inserted] <= now:
                generator.insert([prompts[inserted]], [decoded])
                inserted += 1
            if inserted > ended:
                ended += sum(bool(r.finish_reason) for r in generator.next()[1])
        return time.perf_counter() - begin


def rounds_in_memory(setup: Setup) -> Pairs:
    """8 agents take 10 turns of 200 new tokens and 32 decoded ones, all at once in each round,
    everything in memory, against mlx-lm's BatchGenerator whose float prompt caches are carried
    from turn to turn by hand."""
    rounds = _rounds(setup, setup.scale.number(8))
    with setup.system() as system:
        while True:
            ours = _our_rounds(system, rounds, _answer(setup))
            yield ours, _Carried(setup.model, _answer(setup)).run(rounds)


def rounds_beyond_memory(setup: Setup) -> Pairs:
    """24 agents take 10 such turns with memory for 8 at the end, in rounds, through a store,
    against the loop of mlx-lm's server (its LRUPromptCache and BatchGenerator, without HTTP).
    Each side has memory for 8 of its own: 4-bit caches here, float caches there."""
    few = setup.scale.number(8)
    rounds = _rounds(setup, 3 * few)
    tokens = few * len(rounds) * (len(rounds[0][0]) + _answer(setup))
    with TemporaryDirectory(prefix="kvactors-bench-") as folder:
        for run in count():
            options: dict[str, Any] = {"store": Path(folder) / str(run), "max_batch": few}
            with setup.system(**options, memory_budget=_memory(setup, tokens)) as system:
                ours = _our_rounds(system, rounds, _answer(setup))
            served = _Served(setup.model, _answer(setup), tokens * _float_bytes(setup))
            yield ours, served.run(rounds)


def _memory(setup: Setup, tokens: int) -> int:
    """Bytes for so many idle tokens, as many again for the rows of those that run, and the work
    space of the longest forward, which the peer's budget does not count."""
    from kvactors.core.model.workspace import WorkSpace

    few = setup.scale.number(8)
    space = WorkSpace.measure(setup.loaded)
    kv = 2 * tokens * setup.loaded.spec.bytes_per_token
    return kv + max(space.chunk(256, 1, tokens // few), space.decode(few, tokens // few))


def _float_bytes(setup: Setup) -> int:
    """Bytes a token of mlx-lm's float cache."""
    import mlx.core as mx

    return sum(
        2 * layer.kv_heads * layer.head_dim * getattr(mx, layer.dtype).size
        for layer in setup.loaded.spec.layers
    )


def _rounds(setup: Setup, agents: int) -> list[list[list[int]]]:
    turns, length = setup.scale.number(TURNS), setup.scale.tokens(TURN_TOKENS)
    return [
        [setup.prompt(length, seed=turn * agents + agent) for agent in range(agents)]
        for turn in range(turns)
    ]


def _answer(setup: Setup) -> int:
    """Tokens that are decoded in each turn."""
    return min(ANSWER, setup.scale.decoded)


def _our_rounds(system: AgentSystem, rounds: Sequence[Round], decoded: int) -> float:
    agents = [system.spawn(f"agent {index}") for index in range(len(rounds[0]))]
    sampling = Sampling(max_tokens=decoded)
    begin = time.perf_counter()
    for prompts in rounds:
        asked = zip(agents, prompts, strict=True)
        for future in [agent.ask(prompt, sampling=sampling) for agent, prompt in asked]:
            future.get()
    spent = time.perf_counter() - begin
    for agent in agents:
        system.forget(agent.agent_id)
    return spent


@dataclass
class _Carried:
    """mlx-lm's BatchGenerator with every agent's prompt cache carried by hand."""

    model: Any
    decoded: int
    _histories: dict[int, list[int]] = field(default_factory=dict)
    _caches: dict[int, Any] = field(default_factory=dict)

    def run(self, rounds: Sequence[Round]) -> float:
        begin = time.perf_counter()
        for prompts in rounds:
            with peers.batch_generator(self.model) as generator:
                self._round(generator, prompts)
        return time.perf_counter() - begin

    def _round(self, generator: Any, prompts: Round) -> None:
        running: dict[int, int] = {}
        for agent, prompt in enumerate(prompts):
            history = self._histories.setdefault(agent, [])
            history += prompt
            cache, rest = self._fetch(agent, history)
            caches = None if cache is None else [cache]
            (uid,) = generator.insert([rest], [self.decoded], caches=caches)
            running[uid] = agent
        while running:
            for response in generator.next()[1]:
                self._histories[running[response.uid]].append(response.token)
                if response.finish_reason:
                    self._keep(running.pop(response.uid), response.prompt_cache)

    def _fetch(self, agent: int, history: list[int]) -> tuple[Any, list[int]]:
        """The agent's cache, and the tokens that it lacks."""
        cache = self._caches.pop(agent, None)
        return cache, history[cache[0].offset :] if cache else list(history)

    def _keep(self, agent: int, cache: Any) -> None:
        self._caches[agent] = cache


class _Served(_Carried):
    """The same through the prompt cache of mlx-lm's server, bounded in bytes."""

    def __init__(self, model: Any, decoded: int, nbytes: int) -> None:
        from mlx_lm.models.cache import LRUPromptCache

        super().__init__(model, decoded)
        self._lru = LRUPromptCache(max_size=1_000, max_bytes=nbytes)

    def _fetch(self, agent: int, history: list[int]) -> tuple[Any, list[int]]:
        cache, rest = self._lru.fetch_nearest_cache("model", list(history))
        return cache, list(rest)

    def _keep(self, agent: int, cache: Any) -> None:
        tokens = self._histories[agent][: cache[0].offset]
        self._lru.insert_cache("model", tokens, cache)


def two_at_once(setup: Setup) -> Pairs:
    """Two agents of 1,024 tokens answer with 64 at once, against one after the other: tokens a
    second of the decoding."""
    prompts = [setup.prompt(setup.scale.tokens(1024), seed) for seed in range(2)]
    decoded = setup.scale.decoded
    sampling = Sampling(max_tokens=decoded)
    with setup.system() as system:
        agents = [system.spawn(f"agent {index}") for index in range(2)]
        for agent, prompt in zip(agents, prompts, strict=True):
            answer(agent, prompt)
        while True:
            with _taken_back(agents):
                at_once = _seconds(
                    lambda: [
                        future.get()
                        for future in [agent.ask([1], sampling=sampling) for agent in agents]
                    ]
                )
            with _taken_back(agents):
                apart = _seconds(
                    lambda: [agent.ask([1], sampling=sampling).get() for agent in agents]
                )
            yield 2 * decoded / at_once, 2 * decoded / apart


@contextmanager
def _taken_back(agents: Sequence[Any]) -> Iterator[None]:
    yield
    for agent in agents:
        agent.rewind().get()


def _seconds(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


REGIMES = (
    Regime("32-staggered-arrivals", "mlx-lm BatchGenerator, float", 0.7, staggered),
    Regime("8-agents-10-turns", "mlx-lm BatchGenerator, caches by hand", 1.0, rounds_in_memory),
    Regime("24-agents-memory-8", "mlx-lm server's loop", 0.3, rounds_beyond_memory),
    Regime("2-agents-throughput", "one after the other", 1.48, two_at_once, "higher", "tokens/s"),
)
