"""How things grow: the measurements of `kvactors.bench.table.growth`, one function a curve.

Each yields (size, value) in the order of the sizes that it is given. Times are medians.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from kvactors.actors import AgentSystem
from kvactors.bench.cluster import directory
from kvactors.bench.disk import fill, save_one, seconds_of
from kvactors.bench.setup import Setup, answer
from kvactors.bench.table.decoding import deep_llama
from kvactors.bench.table.latency import QUESTION, remembering
from kvactors.bench.turns import hot_agents, step
from kvactors.core.trace import DecodeStep, PrefillStep, TraceEvent, Tracer
from kvactors.persistence import Store

__all__ = ["CURVES", "Curve"]

Points = Iterator[tuple[int, float]]
CONTEXT = 500
BEGINNING = 1000
SHORT = 100
# Tokens between the lengths of rows that are not to be padded to one.
APART = 1000
TOKENS = (256, 512, 1024, 2048, 4096, 8192, 16_384)
ROWS = (1, 2, 4, 8, 16, 32)
SLABS = (1, 2, 4, 8)
LAYERS = (1, 2, 4, 8, 16, 32)
AGENTS = (100, 300, 1000, 3000, 10_000)
CROWD = (1_000, 3_000, 10_000, 30_000, 100_000)
# Turns that run beside those that wait.
RUNNING = 16


@dataclass(frozen=True, slots=True)
class Curve:
    """`value` (in `unit`) over `size`."""

    value: str
    unit: str
    size: str
    sizes: Sequence[int]
    measure: Callable[[Setup, Sequence[int]], Points]

    @property
    def described(self) -> str:
        """Exactly what is measured: the docstring of `measure`."""
        return " ".join((self.measure.__doc__ or "").split())


def _median(setup: Setup, act: Callable[[], float]) -> float:
    return median(act() for _ in range(setup.scale.runs))


def hot(setup: Setup, sizes: Sequence[int]) -> Points:
    """Time to the first token of a question of 8 tokens to an agent in memory."""
    for size in sizes:
        with remembering(setup, size) as memories, memories.hot() as system:
            yield size, _median(setup, lambda: memories.ask(system).value)


def warm(setup: Setup, sizes: Sequence[int]) -> Points:
    """The same with its KV on disk, out of the page cache where the system can drop it."""
    for size in sizes:
        with remembering(setup, size) as memories:
            yield size, _median(setup, lambda: memories.warm().value)


def cold(setup: Setup, sizes: Sequence[int]) -> Points:
    """The same with nothing but its ledger: all is prefilled."""
    for size in sizes:
        with remembering(setup, size) as memories:
            yield size, _median(setup, lambda: memories.cold().value)


def forked(setup: Setup, sizes: Sequence[int]) -> Points:
    """Time to the first token of a question of 8 tokens to an agent that was just forked from one
    in memory: nothing that they have in common is copied."""
    for size in sizes:
        with setup.system() as system:
            answer(system.spawn("parent"), setup.prompt(size))
            yield size, _median(setup, lambda: _first_of_fork(system))


def _first_of_fork(system: AgentSystem) -> float:
    reply = answer(system.spawn("fork", from_="parent"), QUESTION)
    system.forget("fork")
    assert reply.cache == "hot"
    return reply.timing.first_token


def step_over_rows(setup: Setup, sizes: Sequence[int]) -> Points:
    """Time of a decode step of agents with 500 tokens each."""
    for size in sizes:
        length = setup.scale.tokens(CONTEXT)
        yield size, _step(setup, [setup.prompt(length, seed) for seed in range(size)])


def step_over_tokens(setup: Setup, sizes: Sequence[int]) -> Points:
    """Time of a decode step of one agent."""
    for size in sizes:
        yield size, _step(setup, [setup.prompt(size)])


def step_with_one_beginning(setup: Setup, sizes: Sequence[int]) -> Points:
    """Time of a decode step of agents that were forked from one with 1,000 tokens: those are read
    once for all where that is faster."""
    for size in sizes:
        with setup.system(max_batch=size) as system:
            answer(system.spawn("parent"), setup.prompt(setup.scale.tokens(BEGINNING)))
            forks = [system.spawn(f"fork {number}", from_="parent") for number in range(size)]
            yield size, _median(setup, lambda: step(system, forks, setup.scale.decoded).value)  # noqa: B023


def _step(setup: Setup, prompts: Sequence[list[int]]) -> float:
    with setup.system(max_batch=len(prompts)) as system:
        agents = hot_agents(system, prompts)
        return _median(setup, lambda: step(system, agents, setup.scale.decoded).value)


def thread_time(setup: Setup, sizes: Sequence[int]) -> Points:
    """CPU time of the GPU actor's own thread in a decode step of rows with 100 tokens, 32 thin
    layers: Python, scheduling and the building of the graph, not what MLX's threads compute."""
    from kvactors.core.engine.admission import EngineConfig
    from kvactors.core.engine.engine import Engine
    from kvactors.core.schedule.sampling import Sampling
    from kvactors.core.testing.engines import make_request

    endless = Sampling(max_tokens=10_000)
    for size in sizes:
        engine = Engine(setup.load(deep_llama), EngineConfig(size, 2**33, stored=False))
        for row in range(size):
            engine.submit(make_request(str(row), [], setup.prompt(SHORT, row, deep_llama), endless))
        while engine.stats()["decoding"] < size:
            engine.step()
        times = []
        for _ in range(setup.scale.decoded):
            begin = time.thread_time()
            engine.step()
            times.append(time.thread_time() - begin)
        yield size, median(times)


def bookkeeping(setup: Setup, sizes: Sequence[int]) -> Points:
    """Time of a step of 16 running turns beside so many waiting ones, without its forward."""
    from kvactors.core.engine.engine import Engine, EngineConfig
    from kvactors.core.schedule.sampling import Sampling
    from kvactors.core.testing.engines import make_request

    for size in sizes:
        forward: list[float] = []
        tracer = Tracer()

        def timed(event: TraceEvent, found: list[float] = forward) -> None:
            if isinstance(event, PrefillStep | DecodeStep):
                found.append(event.at - event.began)

        tracer.listen(timed)
        config = EngineConfig(RUNNING, 2**33, stored=False, max_waiting=size + RUNNING)
        engine = Engine(setup.loaded, config, tracer=tracer)
        for row in range(size + RUNNING):
            engine.submit(make_request(str(row), [], [1, 2, 3], Sampling(max_tokens=10_000)))
        while engine.stats()["decoding"] < RUNNING:
            engine.step()
        times = []
        for _ in range(setup.scale.decoded):
            forward.clear()
            begin = time.perf_counter()
            engine.step()
            times.append(time.perf_counter() - begin - sum(forward))
        yield size, median(times)


def ask_among(setup: Setup, sizes: Sequence[int]) -> Points:
    """Time of a turn of one token of an agent in memory, among so many agents that were spawned."""
    for size in sizes:
        with setup.system() as system:
            for number in range(size):
                system.spawn(f"agent {number}")
            agent = system.spawn("agent 0")
            answer(agent, setup.prompt(SHORT))
            yield size, median(seconds_of(lambda: answer(agent, [1])) for _ in range(9))  # noqa: B023


def operations_over_rows(setup: Setup, sizes: Sequence[int]) -> Points:
    """Operations in the graph of a decode step of rows with 100 tokens each, 32 thin layers."""
    for size in sizes:
        yield size, _operations(setup, [SHORT] * size)


def operations_over_slabs(setup: Setup, sizes: Sequence[int]) -> Points:
    """The same for 8 rows in so many slabs, groups of rows that are padded to one length."""
    for size in sizes:
        yield size, _operations(setup, [SHORT + APART * (row % size) for row in range(8)])


def operations_over_layers(setup: Setup, sizes: Sequence[int]) -> Points:
    """The same for one row, and so many layers."""
    for size in sizes:
        yield size, _operations(setup, [SHORT], partial(deep_llama, size))


def _operations(
    setup: Setup, lengths: Sequence[int], source: Callable[[], Any] = deep_llama
) -> int:
    import mlx.core as mx

    from kvactors.core.arena.arena import Arena

    loaded = setup.load(source)
    # As if a slab cost next to nothing, so that every length gets its own.
    policy = replace(loaded.policy, launch_tokens=APART // 2)
    arena = Arena(loaded.spec, policy, max_slabs=len(lengths))
    for length in lengths:
        arena.add_row(length, length + 1)
    arena.evaluate()
    graph = StringIO()
    mx.export_to_dot(graph, arena.forward(loaded.model, mx.array([[1]] * len(lengths))))
    assert len(arena.table.slabs) == len(set(lengths))
    return graph.getvalue().count("shape=rectangle")


def bytes_kept(setup: Setup, sizes: Sequence[int]) -> Points:
    """Bytes of KV that an idle agent keeps in memory."""
    for size in sizes:
        with setup.system() as system:
            answer(system.spawn("agent"), setup.prompt(size))
            yield size, system.stats()["hot_bytes"]


def spawned(setup: Setup, sizes: Sequence[int]) -> Points:
    """Time to spawn so many agents, without a store."""
    for size in sizes:
        yield size, _median(setup, lambda: _spawn(setup, size))  # noqa: B023


def _spawn(setup: Setup, count: int) -> float:
    with setup.system() as system:
        begin = time.perf_counter()
        for number in range(count):
            system.spawn(f"agent {number}")
        return time.perf_counter() - begin


def saved(setup: Setup, sizes: Sequence[int]) -> Points:
    """Time to save the first turn of one more agent in a store that has so many."""
    for size in sizes:
        with TemporaryDirectory(prefix="kvactors-bench-") as folder:
            fill(Path(folder), size)
            store = Store(Path(folder))
            # The first save after opening measures all folders.
            save_one(store, size)
            numbers = iter(range(size + 1, 2**31))
            yield size, _median(setup, lambda: save_one(store, next(numbers)))  # noqa: B023
            store.close()


CURVES = (
    Curve("hot", "ms", "tokens", TOKENS, hot),
    Curve("warm", "ms", "tokens", TOKENS, warm),
    Curve("cold", "ms", "tokens", TOKENS, cold),
    Curve("fork", "ms", "tokens", TOKENS, forked),
    Curve("step", "ms", "agents", ROWS, step_over_rows),
    Curve("step", "ms", "tokens", TOKENS, step_over_tokens),
    Curve("step, one beginning", "ms", "agents", ROWS, step_with_one_beginning),
    Curve("thread time of a step", "ms", "agents", ROWS, thread_time),
    Curve("bookkeeping of a step", "ms", "waiting turns", CROWD, bookkeeping),
    Curve("a turn of one token", "ms", "spawned agents", CROWD, ask_among),
    Curve("operations", "", "agents", ROWS, operations_over_rows),
    Curve("operations", "", "slabs", SLABS, operations_over_slabs),
    Curve("operations", "", "layers", LAYERS, operations_over_layers),
    Curve("memory", "MB", "tokens", TOKENS, bytes_kept),
    Curve("spawn all", "ms", "agents", AGENTS, spawned),
    Curve("save one more", "ms", "agents", AGENTS, saved),
    Curve("directory: a look-up", "ms", "known agents", directory.KNOWN, directory.look_up),
    Curve("directory: bytes", "MB", "known agents", directory.KNOWN, directory.bytes_known),
)
