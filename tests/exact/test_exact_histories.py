"""Tier 1 of exactness: any sequence of turns, cancels and restores equals each agent alone, bit for
bit."""

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from makers import LoadGrid, MakeEngine

from kvactors.core.cache.segment import Segment
from kvactors.core.engine.engine import Engine
from kvactors.core.schedule.events import Finished
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine


class History:
    """What an agent was told and answered, alone and in company."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.stored: dict[int, Segment] = {}
        self.turn = 0

    def keep(self, exported: tuple[Segment, ...]) -> None:
        """Supersede stored segments as a store does."""
        for part in exported:
            self.stored = {s: p for s, p in self.stored.items() if s < part.start}
            self.stored[part.start] = part


step = st.tuples(
    st.integers(0, 3),
    st.integers(1, 90),
    st.integers(1, 9),
    st.sampled_from(["ask", "ask", "ask", "cancel", "forget"]),
)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(step, min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(0, 99),
    st.sampled_from([4, 8, None]),
)
def test_any_sequence_of_turns_cancels_and_restores_equals_each_agent_alone(
    load_grid: LoadGrid,
    make_engine: MakeEngine,
    rounds: list[list[Any]],
    seed: int,
    kv_bits: int | None,
) -> None:
    loaded = load_grid(kv_bits)
    rng = np.random.default_rng(seed)
    engine = make_engine(loaded, max_batch=3, stored=True)
    histories = [History() for _ in range(4)]

    for actions in rounds:
        arrivals, cancels, chosen = [], {}, {}
        for delay, (agent, length, answers, kind) in enumerate(actions):
            if agent in chosen:
                continue
            history = histories[agent]
            if kind == "forget":
                engine.forget(f"{agent}")
            new = rng.integers(1, 128, length).tolist()
            request = make_request(
                f"{agent}",
                history.tokens,
                new,
                Sampling(max_tokens=answers, temperature=0.7, seed=seed),
                turn=history.turn,
                serial=agent,
            )
            chosen[agent] = (list(request.tokens), answers)
            arrivals.append((2 * delay, request))
            if kind == "cancel":
                cancels[3 * delay + 4] = agent
        ends = run_in_company(engine, arrivals, cancels, histories)
        for agent, (tokens, answers) in chosen.items():
            end, history = ends[f"{agent}"], histories[agent]
            sampling = Sampling(max_tokens=answers, temperature=0.7, seed=seed)
            asked = make_request(f"{agent}", [], tokens, sampling, turn=history.turn)
            alone = run_engine(make_engine(loaded), [(0, asked)])[f"{agent}"]
            expected = alone.request.generated
            got = end.request.generated
            assert got == (expected[: len(got)] if end.reason == "cancelled" else expected)
            history.tokens = end.request.tokens
            history.turn += 1
            history.keep(end.exported)


def run_in_company(
    engine: Engine,
    arrivals: list[Any],
    cancels: dict[int, int],
    histories: list[History],
) -> dict[str, Finished]:
    waiting, ends, at = list(arrivals), {}, 0
    while waiting or engine.busy:
        while waiting and waiting[0][0] <= at:
            engine.submit(waiting.pop(0)[1])
        if at in cancels:
            engine.cancel(f"{cancels[at]}", cancels[at])
        for event in engine.step():
            if isinstance(event, Finished):
                ends[event.request.agent_id] = event
            elif type(event).__name__ == "KVNeeded":
                stored = histories[int(event.agent_id)].stored
                engine.provide(event.agent_id, [stored[start] for start in sorted(stored)])
        engine.check()
        at += 1
    return ends
