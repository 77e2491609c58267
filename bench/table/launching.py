"""Regimes of steps that are launches rather than work, on a random llama of 32 layers: what one
row takes, and the thread that builds a step. And a step beside Python that computes.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from time import thread_time
from typing import Any

import mlx.core as mx

from kvactors.actors import Sampling
from kvactors.bench.busy_threads import busy_threads
from kvactors.bench.regime import FLOAT_THERE, Regime, Side, Sides
from kvactors.bench.setup import Setup
from kvactors.bench.table.decoding import BUSY_THREADS, against_one, deep_llama
from kvactors.bench.turns import hot_agents, step
from kvactors.core.engine.engine import Engine, EngineConfig
from kvactors.core.schedule.events import Finished
from kvactors.core.testing.engines import make_request

__all__ = ["REGIMES"]

ROWS, LENGTH = 8, 100
BUDGET = 1 << 30
# Steps before those that count: the step ahead, and what traces are made of.
BEFORE = 24


def one_deep(setup: Setup) -> AbstractContextManager[Sides]:
    """One agent of 100 tokens on a random llama of 32 layers and hidden size 64, where a step is
    launches rather than work, against mlx-lm's `generate_step` over its float cache."""
    return against_one(setup, LENGTH, source=deep_llama)


@contextmanager
def busy_eight(setup: Setup) -> Iterator[Sides]:
    """Eight agents of 500 tokens while four threads compute in Python, against the same agents
    with no such thread."""
    decoded = setup.scale.decoded
    with setup.system() as system:
        prompts = [setup.prompt(setup.scale.tokens(500), seed) for seed in range(ROWS)]
        agents = hot_agents(system, prompts)

        def beside() -> Side:
            with busy_threads(BUSY_THREADS):
                return step(system, agents, decoded)

        yield beside, lambda: step(system, agents, decoded)


class _Launches:
    """CPU seconds of this thread within MLX's launches, which let other threads run Python."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Within, they are."""
        launch = mx.async_eval

        def timed(*arrays: Any) -> None:
            begin = thread_time()
            launch(*arrays)  # type: ignore[no-untyped-call]
            self.seconds += thread_time() - begin

        mx.async_eval = timed
        try:
            yield
        finally:
            mx.async_eval = launch


class _Building:
    """An engine over a model that is `loaded`, and how long its thread holds the GIL for a step
    of as many rows as there are `prompts`."""

    def __init__(self, loaded: Any, prompts: list[list[int]], decoded: int) -> None:
        self._engine = Engine(loaded, EngineConfig(len(prompts), BUDGET, stored=False))
        self._prompts, self._decoded = prompts, decoded

    def run(self) -> Side:
        """CPU seconds of this thread for each step of all rows, launches left out, and the last
        row's tokens."""
        engine, ends, launches = self._engine, list[Finished](), _Launches()
        rows = len(self._prompts)
        form = Sampling(max_tokens=2 * BEFORE + self._decoded)
        for row, prompt in enumerate(self._prompts):
            engine.submit(make_request(f"{row}", [], prompt, form))
        while engine.stats()["decoding"] < rows:
            engine.step()
        for _ in range(BEFORE):
            engine.step()
        begin = thread_time()
        with launches.counted():
            for _ in range(self._decoded):
                engine.step()
        spent = thread_time() - begin - launches.seconds
        while len(ends) < rows:
            ends += [event for event in engine.step() if isinstance(event, Finished)]
        last = max(ends, key=lambda end: end.request.agent_id)
        return Side(spent / self._decoded, last.request.generated)


@contextmanager
def building(setup: Setup) -> Iterator[Sides]:
    """CPU time for which a step of eight agents of 100 tokens on a random llama of 32 layers holds
    the GIL, replayed, against each step built anew."""
    loaded = setup.load(deep_llama)
    prompts = [setup.prompt(LENGTH, row, deep_llama) for row in range(ROWS)]
    decoded = setup.scale.decoded
    ours = _Building(loaded, prompts, decoded)
    theirs = _Building(replace(loaded, eager="as asked"), prompts, decoded)
    yield ours.run, theirs.run


REGIMES = (
    Regime("decode-one-deep", "mlx-lm generate_step, float", 1.0, one_deep, differ=FLOAT_THERE),
    # 2.5 ms where 5.9 were found.
    Regime("decode-building", "steps built anew", 0.42, building),
    Regime("decode-busy-8", "no busy thread", 1.4, busy_eight),
)
