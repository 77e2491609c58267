"""A draft model: turns say and keep what they do without, whatever it drafts; and it drafts as well
as it can, in the memory that is left."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from makers import LoadFamily, LoadGrid, MakeEngine, prompts_of
from rounds import (
    SHORT_OF_MEMORY,
    another,
    ends,
    it_is_known_at_once,
    itself,
    said,
    saved,
    slipping,
    to_draft_costs_nothing,
    turns,
)
from seeded import Bug, bug, seeded

from kvactors import Sampling
from kvactors.core.engine.engine import Engine
from kvactors.core.engine.execution import Execution
from kvactors.core.engine.memory import Memory
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.speculation import chain
from kvactors.core.schedule.speculation.acceptance import Costs
from kvactors.core.schedule.speculation.chain import Chains
from kvactors.core.schedule.speculation.speculation import NOTHING, SpeculationConfig, Turn
from kvactors.core.testing.engines import make_request, run_engine

ON = SpeculationConfig(share=False)


@bug(Costs, "of")
def to_check_costs_nothing(_true: Any) -> Any:
    return lambda _costs, _rows, _more, _longest: 1.0


@pytest.fixture(autouse=True)
def drafts_are_free() -> Iterator[None]:
    """So that how many there are does not depend on how fast this machine is."""
    with (
        seeded(it_is_known_at_once),
        seeded(to_check_costs_nothing),
        seeded(to_draft_costs_nothing),
    ):
        yield


def right(engine: Engine) -> float:
    """Of what the draft model drafted, how much was right."""
    stats = engine.stats()
    assert stats["model_drafted_tokens"], "nothing was drafted: the test says too little"
    return stats["model_accepted_tokens"] / stats["model_drafted_tokens"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draft", "least", "most"), [(itself, 0.15, 1.0), (slipping, 0.07, 0.6), (another, 0.0, 0.1)]
)
def test_whatever_it_drafts_turns_say_and_keep_the_same(
    load_grid: LoadGrid, make_engine: MakeEngine, draft: Any, least: float, most: float
) -> None:
    loaded = load_grid()
    plain = ends(make_engine(loaded, stored=True), turns())
    engine = make_engine(draft(loaded), stored=True, speculation=ON)

    found = ends(engine, turns())

    assert said(found) == said(plain)
    assert saved(found) == saved(plain)
    assert least <= right(engine) <= most
    assert engine.stats()["accepted_tokens"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "gpt_oss", "gemma3_text"])
def test_for_models_with_windows_and_sinks_too(
    load_family: LoadFamily, make_engine: MakeEngine, family: str
) -> None:
    loaded = load_family(family)
    plain = ends(make_engine(loaded, stored=True), turns())
    engine = make_engine(another(loaded), stored=True, speculation=ON)

    found = ends(engine, turns())

    assert engine.stats()["model_drafted_tokens"]
    assert said(found) == said(plain)
    assert saved(found) == saved(plain)


def in_float(load_grid: LoadGrid) -> LoadedModel:
    """A model over floats, as a draft model is: one that drafts for itself is always right."""
    return load_grid(kv_bits=None)


def sampled(seed: int) -> Any:
    form = Sampling(max_tokens=40, temperature=0.9, seed=seed)
    return make_request(f"{seed}", [], prompts_of((50,), seed)[0], form, turn=seed)


def test_it_draws_as_its_turn_draws(load_grid: LoadGrid, make_engine: MakeEngine) -> None:
    engine = make_engine(itself(in_float(load_grid)), speculation=ON)

    ends(engine, [sampled(seed) for seed in range(4)])

    assert right(engine) > 0.95


@bug(chain, "draw_key")
def a_key_of_the_next_place(true: Any) -> Any:
    return lambda sampling, agent, turn, position: true(sampling, agent, turn, position + 1)


@bug(chain, "draw_key")
def a_key_of_another_turn(true: Any) -> Any:
    return lambda sampling, agent, turn, position: true(sampling, agent, turn + 1, position)


@pytest.mark.parametrize("seed", [a_key_of_the_next_place, a_key_of_another_turn], ids=str)
def test_a_draft_with_another_key_is_seen_to_be_wrong_more_often(
    load_grid: LoadGrid, make_engine: MakeEngine, seed: Bug
) -> None:
    engine = make_engine(itself(in_float(load_grid)), speculation=ON)

    with seeded(seed):
        ends(engine, [sampled(number) for number in range(4)])

    assert right(engine) < 0.6


def steps_beside_slips(load_grid: LoadGrid, make_engine: MakeEngine) -> int:
    """Forwards that an answer of 60 tokens takes where every fifth draft is wrong."""
    engine, steps = make_engine(slipping(in_float(load_grid)), speculation=ON), 0

    def on_step(number: int) -> None:
        nonlocal steps
        steps = number

    form = Sampling(max_tokens=60)
    run_engine(engine, [(0, make_request("a", [], prompts_of((50,))[0], form))], on_step)
    return steps


@bug(chain.DraftRow, "cut")
def what_was_wrong_stays(_true: Any) -> Any:
    def cut(row: Any) -> None:
        del row.tokens[row.agreed :]

    return cut


def test_a_cache_is_cut_back_behind_what_was_wrong(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    # Sixty tokens, five a step.
    assert steps_beside_slips(load_grid, make_engine) < 22

    with seeded(what_was_wrong_stays):
        assert steps_beside_slips(load_grid, make_engine) > 30


def test_a_turn_that_gives_way_or_is_cancelled_in_between_is_as_without(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    loaded = load_grid()
    plain = said(ends(make_engine(loaded), turns()))
    engine = make_engine(slipping(loaded), budget=2 * SHORT_OF_MEMORY, speculation=ON)

    def on_step(number: int) -> None:
        if number == 9:
            engine.cancel("2", None)

    found = said(ends(engine, turns(), on_step))

    cut = found.pop("2")
    assert plain.pop("2")[: len(cut)] == cut
    assert found == plain


@pytest.mark.slow
@pytest.mark.parametrize("place", range(4))
def test_a_stop_within_a_draft_ends_the_turn_there(
    load_grid: LoadGrid, make_engine: MakeEngine, place: int
) -> None:
    loaded = load_grid()
    endless = said(ends(make_engine(loaded), turns()))
    token = endless["1"][place + 3]

    def stopped() -> list[Any]:
        requests = turns()
        for request in requests:
            request.stop_tokens = frozenset({0, token})
        return requests

    plain = ends(make_engine(loaded, stored=True), stopped())
    engine = make_engine(itself(loaded), stored=True, speculation=ON)
    found = ends(engine, stopped())

    assert found["1"].reason == "stop"
    assert said(found) == said(plain)
    assert engine.stats()["generated_tokens"] == sum(map(len, said(found).values()))
    assert saved(found) == saved(plain)


def test_what_was_fed_stays_for_the_next_turn_and_goes_with_its_agent(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine, form = make_engine(itself(load_grid()), speculation=ON), Sampling(max_tokens=12)
    first = run_engine(engine, [(0, make_request("a", [], prompts_of((90,))[0], form))])["a"]
    chains = engine.memory.drafts
    assert isinstance(chains, Chains)
    assert chains.nbytes > 0

    onward = make_request("a", first.request.tokens, [5, 6, 7], form, turn=1)
    assert chains.missing(onward) < 3 + form.max_tokens
    ends(engine, [onward])

    assert engine.memory.used > chains.nbytes > 0
    engine.forget("a")
    assert chains.nbytes == 0
    engine.check()


def test_where_memory_is_short_nothing_is_drafted_and_nothing_is_kept(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    loaded = load_grid()
    plain = said(ends(make_engine(loaded), turns()))
    engine = make_engine(itself(loaded), budget=SHORT_OF_MEMORY, speculation=ON)

    assert said(ends(engine, turns())) == plain
    assert engine.memory.drafts.nbytes == 0
    assert engine.stats()["model_drafted_tokens"] == 0


def test_where_there_is_no_room_for_drafts_nobody_waits_for_them(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    @bug(Memory, "can_draft")
    def never(_true: Any) -> Any:
        return lambda *_: False

    @bug(Execution, "_waits")
    def noted(true: Any) -> Any:
        def waits(execution: Any, batch: Any) -> bool:
            waited.append(true(execution, batch))
            return waited[-1]

        return waits

    @bug(Turn, "draft")
    def nothing_was_said_before(_true: Any) -> Any:
        return lambda *_, **__: NOTHING

    waited: list[bool] = []
    with seeded(never), seeded(noted), seeded(nothing_was_said_before):
        ends(make_engine(itself(load_grid()), speculation=ON), [sampled(1)])

    assert waited
    assert not any(waited)


def test_what_is_counted_is_what_was_checked(load_grid: LoadGrid, make_engine: MakeEngine) -> None:
    engine = make_engine(slipping(in_float(load_grid)), speculation=ON)

    ends(engine, turns())

    stats = engine.stats()
    assert 0 < stats["model_drafted_tokens"] <= stats["drafted_tokens"]
    assert 0 < stats["model_accepted_tokens"] <= stats["accepted_tokens"]


def test_one_that_fails_is_asked_no_more_and_its_turns_go_on(
    load_grid: LoadGrid, make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load_grid()
    plain = said(ends(make_engine(loaded), turns()))
    engine = make_engine(itself(loaded), speculation=ON)

    @bug(Chains, "draft")
    def it_fails(_true: Any) -> Any:
        def draft(*_: Any) -> None:
            raise RuntimeError("no draft")

        return draft

    with seeded(it_fails), caplog.at_level(logging.ERROR):
        assert said(ends(engine, turns())) == plain
    assert [record.message for record in caplog.records] == [
        "the draft model failed; it drafts no more"
    ]
