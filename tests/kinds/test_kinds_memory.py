"""Layers of every kind in little memory: agents that leave and come back, what they share, and
turns that begin again."""

from dataclasses import replace

import pytest
from makers import LoadFamily, MakeEngine, prompts_of

from kvactors.core.cache.segment import Segment
from kvactors.core.engine.engine import Engine
from kvactors.core.schedule.events import Finished, KVNeeded
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.models import Faulty

SAMPLING = Sampling(max_tokens=9)


@pytest.mark.parametrize("family", ["gemma3_text", "falcon_h1", "mamba2"])
def test_agents_that_leave_a_small_memory_and_come_back_answer_the_same(
    load_family: LoadFamily, make_engine: MakeEngine, family: str
) -> None:
    loaded = load_family(family)
    prompts = prompts_of((300, 310, 320, 280), seed=7)
    roomy = make_engine(loaded, stored=True)
    budget = roomy.memory.workspace[0].least(350, 1) + 4 * loaded.spec.bytes_of(350)
    small = make_engine(loaded, stored=True, budget=budget)
    said: dict[str, list[list[int]]] = {"roomy": [], "small": []}

    for name, engine in (("roomy", roomy), ("small", small)):
        known: list[list[int]] = [[] for _ in prompts]
        stored: dict[str, list[Segment]] = {}
        for news in (prompts, [[5], [6, 7], [8], [9]]):
            requests = [make_request(f"{i}", known[i], new, SAMPLING) for i, new in enumerate(news)]
            run_over_store(engine, requests, stored)
            known = [request.tokens for request in requests]
            said[name] += [request.generated for request in requests]

    assert said["small"] == said["roomy"]
    assert small.stats()["evictions"] > 0
    assert roomy.stats()["evictions"] == 0


def run_over_store(
    engine: Engine, requests: list[Request], stored: dict[str, list[Segment]]
) -> None:
    """Run turns to their end; what is exported is kept as a store would, and given back."""
    for request in requests:
        engine.submit(request)
    while engine.busy:
        for event in engine.step():
            if isinstance(event, KVNeeded):
                engine.provide(event.agent_id, stored.get(event.agent_id, ()))
            elif isinstance(event, Finished):
                agent, exported = event.request.agent_id, event.exported
                kept = [p for p in stored.get(agent, []) if p.start < exported[0].start]
                stored[agent] = [*kept, *exported]
                engine.saved(agent, sum(p.nbytes for p in exported))
        engine.check()


fixed_chunks = pytest.mark.parametrize("family", ["deepseek_v3", "gemma2", "mamba2", "qwen3_next"])


@fixed_chunks
def test_a_beginning_that_agents_share_leaves_the_cache_that_each_would_have_alone(
    load_family: LoadFamily, make_engine: MakeEngine, family: str
) -> None:
    loaded = load_family(family)
    beginning, *ends = prompts_of((100, 30, 200), seed=8)

    def request(name: str, end: list[int]) -> Request:
        asked = make_request(name, [], [*beginning, *end], SAMPLING)
        asked.shared, asked.prompt_hash, asked.tenant = len(beginning), "the same", ""
        return asked

    alone = run_engine(make_engine(loaded, stored=True), [(0, request("b", ends[1]))])["b"]
    engine = make_engine(loaded, stored=True)
    shared = run_engine(engine, [(0, request("a", ends[0])), (1, request("b", ends[1]))])["b"]

    assert (alone.request.kept, shared.request.kept) == (0, len(beginning))
    assert shared.request.generated == alone.request.generated
    assert [part.tensors for part in shared.exported] == [part.tensors for part in alone.exported]


@fixed_chunks
def test_a_turn_that_begins_again_decodes_what_it_would_have(
    load_family: LoadFamily, make_engine: MakeEngine, family: str
) -> None:
    loaded = load_family(family)
    prompts = prompts_of((300, 40), seed=9)
    budgets = [Sampling(max_tokens=n) for n in (9, 12)]

    def requests() -> list[Request]:
        return [make_request(f"{i}", [], prompts[i], budgets[i]) for i in range(2)]

    alone = [run_engine(make_engine(loaded, stored=True), [(0, r)]) for r in requests()]
    faulty = Faulty(loaded.model)
    engine = make_engine(replace(loaded, model=faulty), stored=True)

    def fail(step: int) -> None:
        if step == 8:
            faulty.arm(step=0)

    together = run_engine(engine, [(0, request) for request in requests()], fail)

    for name, expected in zip("01", alone, strict=True):
        end = together[name]
        assert end.request.generated == expected[name].request.generated
        assert [p.tensors for p in end.exported] == [p.tensors for p in expected[name].exported]
