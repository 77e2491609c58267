"""A step that fails before or behind its forward: it is blamed on the turns that it was for, the
others go on, and the engine stays."""

from collections.abc import Callable
from typing import Any

import pytest
from makers import LoadGrid, MakeEngine, prompt_of
from seeded import bug, seeded

from kvactors.core.arena.arena import Arena
from kvactors.core.engine.engine import Engine
from kvactors.core.engine.runner import DecodeBatch
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
