"""Turns of agents that begin alike: their common keys are read once, and it never shows."""

import pytest
from cascade import BEGINNING
from makers import MakeEngine

from kvactors.core.model.load import LoadedModel
from kvactors.core.quant.device import on_cpu
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine

pytestmark = pytest.mark.skipif(not on_cpu(), reason="only a CPU has float64")


def test_forks_that_decode_with_strangers_say_what_they_say_alone(
    loaded: LoadedModel, make_engine: MakeEngine, calls: list[tuple[int, int]]
) -> None:
    engine = make_engine(loaded)
    parent = make_request("parent", [], BEGINNING * 3, Sampling(max_tokens=3))
    known = run_engine(engine, [(0, parent)])["parent"].request.tokens
    turns = [
        make_request(f"{i}", known if i % 4 else [], [i + 1] * (9 * i + 2), Sampling(max_tokens=n))
        for i, n in enumerate((6, 20, 9, 14, 11, 17, 4, 12))
    ]
    prompts = [list(turn.tokens) for turn in turns]
    for turn in turns:
        if turn.prompt > turn.fresh:
            engine.memory.fork("parent", turn.agent_id)

    def cancel_one(step: int) -> None:
        if step == 9:
            engine.cancel("5", 0)

    ends = run_engine(engine, [(2 * i, turn) for i, turn in enumerate(turns)], cancel_one)

    assert max(rows for rows, _ in calls) > 2
    assert {shared for _, shared in calls} == {len(known) - 1}
    for turn, prompt in zip(turns, prompts, strict=True):
        request = make_request("alone", [], prompt, turn.sampling)
        alone = run_engine(make_engine(loaded), [(0, request)])["alone"].request.generated
        said = ends[turn.agent_id].request.generated
        assert said == alone[: len(said)]
        assert len(said) == len(alone) or turn.agent_id == "5"


def test_agents_with_one_system_prompt_read_it_once_and_say_what_they_say_alone(
    loaded: LoadedModel, make_engine: MakeEngine, calls: list[tuple[int, int]]
) -> None:
    engine = make_engine(loaded)
    beginning = (BEGINNING * 2)[:300]
    known: dict[str, list[int]] = {f"{i}": [] for i in range(5)}
    for turn, expected in enumerate((300, 256)):
        # Of a beginning that grew into a turn, full blocks are what agents have in common.
        calls.clear()
        turns = []
        for i, (name, tokens) in enumerate(known.items()):
            new = [5 + i, 9] if tokens else [*beginning, 5 + i, 9]
            turns.append(make_request(name, tokens, new, Sampling(max_tokens=8), turn=turn))
            if not tokens:
                turns[-1].shared, turns[-1].prompt_hash = len(beginning), "system prompt"
                turns[-1].tenant = ""
        prompts = [list(request.tokens) for request in turns]

        ends = run_engine(engine, [(0, request) for request in turns])

        assert {shared for _, shared in calls} == {expected}
        for name, prompt in zip(known, prompts, strict=True):
            alone = make_request("alone", [], prompt, Sampling(max_tokens=8))
            run_engine(make_engine(loaded), [(0, alone)])
            assert ends[name].request.generated == alone.generated
            known[name] = ends[name].request.tokens
