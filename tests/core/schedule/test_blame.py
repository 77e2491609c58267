"""A step that fails before or behind its forward: it is blamed on the turns that it was for, the
others go on, and the engine stays."""

from collections.abc import Callable
from typing import Any

import pytest
from makers import LoadGrid, MakeEngine, prompt_of
from seeded import Bug, bug, seeded

from kvactors.core.arena.arena import Arena
from kvactors.core.arena.kv_rows import KVRows
from kvactors.core.engine.engine import Engine
from kvactors.core.engine.hot_cache import HotCaches
from kvactors.core.engine.runner import DecodeBatch
from kvactors.core.engine.running import RunningBatches
from kvactors.core.schedule.events import Aborted, Finished
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine

NO_MEMORY = "[malloc] Unable to allocate 123 bytes."
LONG = Sampling(max_tokens=40)


def turns(engine: Engine) -> dict[str, Finished | Aborted]:
    """How three turns end: the second goes on from 700 tokens that are hot, and all decode
    together."""
    run_engine(engine, [(0, make_request("big", [], prompt_of(700), Sampling(max_tokens=2)))])
    past = engine.memory.hot.touch("big", 0.0).tokens
    ends: dict[str, Finished | Aborted] = {}
    for name, known in (("small", []), ("big", list(past)), ("last", [])):
        engine.submit(make_request(name, known, prompt_of(30, seed=len(name)), LONG, turn=1))
        for _ in range(4):
            ends |= ended(engine)
    while engine.busy:
        ends |= ended(engine)
    return ends


def ended(engine: Engine) -> dict[str, Finished | Aborted]:
    """Those of one step."""
    found = [event for event in engine.step() if isinstance(event, Finished | Aborted)]
    engine.check()
    return {
        (event.request.agent_id if isinstance(event, Finished) else event.agent_id): event
        for event in found
    }


def said(end: Finished | Aborted) -> list[int]:
    assert isinstance(end, Finished), end
    return end.request.generated


@bug(Arena, "load")
def what_is_hot_is_too_much_for_a_row(true: Any) -> Any:
    def load(arena: Any, row: int, piece: Any) -> Any:
        if piece.end > 600:
            raise RuntimeError(NO_MEMORY)
        return true(arena, row, piece)

    return load


def once(true: Callable[..., Any]) -> Any:
    """Fails the first time."""
    failed: list[bool] = []

    def work(*arguments: Any, **options: Any) -> Any:
        if not failed:
            failed.append(True)
            raise RuntimeError(NO_MEMORY)
        return true(*arguments, **options)

    return work


def test_a_row_that_cannot_be_made_fails_its_own_turn_alone(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    plain, engine = turns(make_engine(load_grid())), make_engine(load_grid())

    with seeded(what_is_hot_is_too_much_for_a_row):
        ends = turns(engine)

    assert isinstance(ends["big"], Aborted)
    assert NO_MEMORY in str(ends["big"].error)
    for name in ("small", "last"):
        assert said(ends[name]) == said(plain[name])


@pytest.mark.parametrize(
    "place",
    [(Arena, "take"), (DecodeBatch, "join")],
    ids=lambda place: f"{place[0].__name__}.{place[1]}",
)
def test_a_row_that_cannot_be_moved_once_is_made_again_and_says_the_same(
    load_grid: LoadGrid, make_engine: MakeEngine, place: tuple[type, str]
) -> None:
    plain, engine = turns(make_engine(load_grid())), make_engine(load_grid())
    with seeded(bug(*place)(once)):
        ends = turns(engine)

    assert {name: said(end) for name, end in ends.items()} == {
        name: said(end) for name, end in plain.items()
    }


def fails_for(tokens: int, place: str, failed: list[int]) -> Bug:
    """A row of so many tokens can never be moved; how long those were that were to be."""

    @bug(Arena, place)
    def never(true: Any) -> Any:
        def work(arena: Arena, source: Arena, row: int) -> Any:
            if (length := source.table.lengths[row]) >= tokens:
                failed.append(length)
                raise RuntimeError(NO_MEMORY)
            return true(arena, source, row)

        return work

    return never


def test_a_row_that_can_never_be_moved_fails_alone_and_costs_the_others_one_beginning(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    def three(engine: Engine) -> dict[str, Finished | Aborted]:
        for name, tokens in (("small", 20), ("last", 30), ("big", 1000)):
            engine.submit(make_request(name, [], prompt_of(tokens), LONG))
        ends: dict[str, Finished | Aborted] = {}
        while engine.busy:
            ends |= ended(engine)
        return ends

    plain, engine = three(make_engine(load_grid())), make_engine(load_grid())
    discarded, failed = list[int](), list[int]()

    @bug(RunningBatches, "discard")
    def counted(true: Any) -> Any:
        def discard(running: RunningBatches, requests: Any) -> None:
            discarded.append(len(requests))
            true(running, requests)

        return discard

    with seeded(fails_for(700, "take", failed)), seeded(counted):
        ends = three(engine)

    assert isinstance(ends["big"], Aborted)
    assert NO_MEMORY in str(ends["big"].error)
    # With the others, then alone, before its last token decodes.
    assert failed == [999, 999]
    for name in ("small", "last"):
        assert said(ends[name]) == said(plain[name])
    assert [len(discarded), discarded[-1]] == [2, 1]


def test_a_row_that_was_half_moved_is_in_nobodys_way(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    def both(engine: Engine) -> dict[str, Finished]:
        told = make_request("told", [], prompt_of(60, seed=1), LONG, answer=False)
        return run_engine(engine, [(0, make_request("asked", [], prompt_of(60), LONG)), (0, told)])

    plain, engine = both(make_engine(load_grid())), make_engine(load_grid())

    with seeded(bug(KVRows, "copy_row")(once)):
        ends = both(engine)

    assert said(ends["asked"]) == said(plain["asked"])


def test_a_beginning_that_cannot_be_offered_once_harms_none_of_its_batch(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    def three(engine: Engine) -> dict[str, list[int]]:
        requests = [make_request(name, [], prompt_of(60, seed=ord(name)), LONG) for name in "abc"]
        for request in requests:
            request.shared, request.prompt_hash, request.tenant = 50, request.agent_id, ""
        ends = run_engine(engine, [(0, request) for request in requests])
        return {name: said(end) for name, end in ends.items()}

    plain, engine = three(make_engine(load_grid())), make_engine(load_grid())

    with seeded(bug(HotCaches, "take")(once)):
        assert three(engine) == plain


def test_turns_that_can_never_be_brought_together_are_said_alone_and_tried_few_times(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    plain, engine, tried = turns(make_engine(load_grid())), make_engine(load_grid()), list[int]()

    @bug(DecodeBatch, "join")
    def only_where_nobody_is(true: Any) -> Any:
        def join(batch: DecodeBatch, *moved: Any) -> None:
            if batch.requests:
                tried.append(len(batch.requests))
                raise RuntimeError(NO_MEMORY)
            true(batch, *moved)

        return join

    with seeded(only_where_nobody_is):
        ends = turns(engine)

    assert {name: said(end) for name, end in ends.items()} == {
        name: said(end) for name, end in plain.items()
    }
    assert 0 < len(tried) <= len(ends) + 1
