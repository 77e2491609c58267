"""Turns that are given drafts say what they say without: tokens and bytes, in any company, whatever
was drafted."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from forks import held_bytes
from makers import LoadFamily, LoadGrid, MakeEngine, Ticks, prompts_of
from rounds import FORMS, ON, SHORT_OF_MEMORY, Drafts, drafting, ends, said, saved, turns
from seeded import Bug, bug, seeded

from kvactors import Sampling
from kvactors.core.arena.pieces import Piece
from kvactors.core.engine.engine import Engine
from kvactors.core.engine.preemption import Preemption
from kvactors.core.engine.runner import DecodeBatch
from kvactors.core.errors import TurnFailed
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule import drawing
from kvactors.core.schedule.drawing import Place
from kvactors.core.schedule.events import Finished
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.speculation.acceptance import MOST_DRAFTED
from kvactors.core.testing.engines import make_request, run_engine


def both(
    loaded: LoadedModel, make_engine: MakeEngine, right: int, wrong: int = 1
) -> tuple[dict[str, Finished], dict[str, Finished]]:
    """The turns' ends without drafts, and with them."""
    plain = ends(make_engine(loaded, stored=True), turns())
    with drafting(said(plain), right, wrong) as given:
        engine = make_engine(loaded, stored=True, speculation=ON)
        found = ends(engine, turns())
    assert given, "nothing was drafted: the test says too little"
    accepted = engine.stats()["accepted_tokens"]
    assert accepted > 0 if right else accepted < sum(given)
    return plain, found


def test_drafts_of_rows_that_read_one_beginning_say_the_same(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    loaded = load_grid()
    loaded = replace(loaded, policy=replace(loaded.policy, launch_tokens=64))
    prompts, read = prompts_of((300, 5, 40, 1)), set[Piece]()

    def forked(engine: Engine) -> list[Request]:
        parent = make_request("parent", [], prompts[0], Sampling(max_tokens=4))
        known = run_engine(engine, [(0, parent)])["parent"].request.tokens
        for row in range(3):
            engine.memory.fork("parent", f"{row}")
        return [make_request(f"{row}", known, prompts[row + 1], FORMS[row]) for row in range(3)]

    apart = make_engine(loaded, stored=True, share=False)
    plain = ends(apart, forked(apart))
    engine = make_engine(loaded, stored=True, speculation=ON)
    requests = forked(engine)
    with drafting(said(plain), right=2, wrong=1):
        found = ends(engine, requests, lambda _: read.update(engine.memory.rows.read))

    assert max(piece.end for piece in read) == 303
    assert engine.stats()["accepted_tokens"] > 0
    assert said(found) == said(plain)
    assert saved(found) == saved(plain)


@pytest.mark.parametrize("right", range(MOST_DRAFTED + 1))
def test_every_accepted_length_says_and_keeps_the_same(
    load_grid: LoadGrid, make_engine: MakeEngine, right: int
) -> None:
    plain, found = both(load_grid(), make_engine, right)

    assert said(found) == said(plain)
    assert saved(found) == saved(plain)
    looked = {name: end.request.logprobs for name, end in plain.items()}
    assert {name: end.request.logprobs for name, end in found.items()} == looked


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "gpt_oss", "gemma3_text", "qwen3_moe"])
@pytest.mark.parametrize("right", [1, 4])
def test_windows_sinks_and_experts_too(
    load_family: LoadFamily, make_engine: MakeEngine, family: str, right: int
) -> None:
    plain, found = both(load_family(family), make_engine, right, wrong=3)

    assert said(found) == said(plain)
    assert saved(found) == saved(plain)


@bug(Preemption, "spares_drafts")
def drafts_never_go(_true: Any) -> Any:
    return property(lambda _: True)


def test_a_turn_that_gives_way_or_is_cancelled_in_between_is_as_without(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    loaded = load_grid()
    calm = make_engine(loaded)
    plain = said(ends(calm, turns()))
    engine = make_engine(loaded, budget=SHORT_OF_MEMORY * 3 // 7, speculation=ON, clock=Ticks())
    begun, away, came_back = set[str](), set[str](), set[str]()

    def on_step(_: int) -> None:
        answering = {r.agent_id: r.decoded for r in engine.memory.running.answering if r.decoded}
        if answering.get("2", 0) > 5:
            engine.cancel("2", None)
        came_back.update(away & answering.keys())
        begun.update(answering)
        away.update(begun - answering.keys())

    # Drafts go before anybody does: here they stay as long as they can.
    with drafting(plain, 3, 1), seeded(drafts_never_go):
        found = said(ends(engine, turns(), on_step))

    assert engine.stats()["preemptions"] > 0
    assert came_back, "nobody gave way in the middle of an answer"
    assert engine.stats()["accepted_tokens"] > 50
    cut, whole = found.pop("2"), plain.pop("2")
    assert whole[: len(cut)] == cut
    assert 5 < len(cut) < len(whole)
    assert found == plain
    held = held_bytes(engine)
    assert len(held.keys() & plain.keys()) > 1
    assert all(held[name] == held_bytes(calm)[name] for name in held.keys() & plain.keys())


@pytest.mark.parametrize("place", range(5))
def test_a_stop_within_a_draft_ends_the_turn_there(
    load_grid: LoadGrid, make_engine: MakeEngine, place: int
) -> None:
    loaded = load_grid()
    endless = ends(make_engine(loaded), turns())
    token = endless["1"].request.generated[place + 3]
    stops = [replace_stop(request, token) for request in turns()]
    plain = ends(make_engine(loaded, stored=True), stops)

    with drafting(said(endless), 6, 0):
        again = [replace_stop(request, token) for request in turns()]
        found = ends(make_engine(loaded, stored=True, speculation=ON), again)

    assert found["1"].reason == "stop"
    assert said(found) == said(plain)
    assert saved(found) == saved(plain)


def replace_stop(request: Request, token: int) -> Request:
    request.stop_tokens = frozenset({0, token})
    return request


def test_a_turn_that_went_on_remembers_what_it_said_and_no_more(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    loaded = load_grid()
    plain = ends(make_engine(loaded), turns())
    tokens = plain["0"].request.tokens
    with drafting(said(plain), 4, 2):
        engine = make_engine(loaded, stored=True, speculation=ON)
        ends(engine, turns())
    form = Sampling(max_tokens=8)

    onward = run_engine(engine, [(0, make_request("0", tokens, [5, 6], form, turn=9))])["0"]
    untouched = make_engine(loaded)
    told = run_engine(untouched, [(0, make_request("0", [], [*tokens, 5, 6], form, turn=9))])["0"]

    assert onward.request.kept == len(tokens) - 1
    assert onward.request.generated == told.request.generated


@pytest.mark.usefixtures("work_of_a_cpu")
def test_while_a_turn_waits_for_room_nothing_is_drafted(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    loaded = load_grid()
    plain = said(ends(make_engine(loaded), turns()))
    engine = make_engine(loaded, budget=SHORT_OF_MEMORY // 4, speculation=ON)

    seen: list[tuple[int, int]] = []

    def on_step(_: int) -> None:
        stats = engine.stats()
        seen.append((stats["waiting"], stats["drafted_tokens"]))

    with drafting(plain, 6, 0):
        assert said(ends(engine, turns(), on_step)) == plain

    short = [two for two in pairwise(seen) if all(waiting for waiting, _ in two)]
    assert engine.stats()["preemptions"] > 0
    assert len(short) > 10
    assert sum(after - before for (_, before), (_, after) in short) == 0


# -- bugs on purpose ---------------------------------------------------------------------------


@bug(DecodeBatch, "verify")
def one_too_many_is_accepted(true: Any) -> Any:
    def check(batch: Any, drafts: Drafts) -> Any:
        decoded = true(batch, drafts)
        last = {item.request: item for item in decoded}
        return [*decoded, *(last[request] for request in drafts if request in last)]

    return check


@bug(Place, "beyond")
def a_key_is_that_of_the_place_before(true: Any) -> Any:
    return property(lambda place: max(0, true.fget(place) - bool(place.after)))


@bug(DecodeBatch, "verify")
def a_row_is_cut_one_token_too_far(true: Any) -> Any:
    def check(batch: Any, drafts: Drafts) -> Any:
        decoded = true(batch, drafts)
        for row, length in enumerate(batch.arena.table.lengths):
            batch.arena.cut(row, length - 1)
        return decoded

    return check


@bug(drawing, "_mask")
def all_places_of_a_draft_are_drawn_by_one_mask(true: Any) -> Any:
    return lambda place: true(replace(place, after=()))


@bug(Request, "says_stop")
def a_stop_is_found_one_token_late(true: Any) -> Any:
    return property(lambda request: request.decoded > 1 and true.fget(_without_last(request)))


def _without_last(request: Request) -> Request:
    return replace(request, tokens=request.tokens[:-1])


@pytest.mark.parametrize(
    "seed",
    [
        one_too_many_is_accepted,
        a_key_is_that_of_the_place_before,
        a_row_is_cut_one_token_too_far,
        all_places_of_a_draft_are_drawn_by_one_mask,
    ],
    ids=str,
)
def test_a_bug_in_a_round_is_caught(
    load_grid: LoadGrid, make_engine: MakeEngine, seed: Bug
) -> None:
    loaded = load_grid()
    plain = ends(make_engine(loaded, stored=True), turns())
    with drafting(said(plain), 3, 1), seeded(seed):
        try:
            found = ends(make_engine(loaded, stored=True, speculation=ON), turns())
        except (AssertionError, TurnFailed):
            return
    assert said(found) != said(plain) or saved(found) != saved(plain)


def test_a_stop_that_is_found_late_is_caught(load_grid: LoadGrid, make_engine: MakeEngine) -> None:
    loaded = load_grid()
    endless = ends(make_engine(loaded), turns())
    token = endless["1"].request.generated[6]
    plain = ends(make_engine(loaded), [replace_stop(request, token) for request in turns()])

    with drafting(said(endless), 6, 0), seeded(a_stop_is_found_one_token_late):
        again = [replace_stop(request, token) for request in turns()]
        found = ends(make_engine(loaded, speculation=ON), again)

    assert said(found) != said(plain)


def test_a_clock_that_stands_still_fails_no_turn(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    loaded, sampling = load_grid(), Sampling(max_tokens=60)
    engine = make_engine(loaded, speculation=ON, clock=lambda: 0.0)

    found, plain = (
        run_engine(each, [(0, make_request("a", [], [5, 9, 3] * 9, sampling))])
        for each in (engine, make_engine(loaded))
    )

    assert engine.stats()["accepted_tokens"] > 0
    assert said(found) == said(plain)
