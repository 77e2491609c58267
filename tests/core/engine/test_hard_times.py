"""What goes wrong at the worst moment: a device that dies while a turn ends, a cancel just before
the engine is built anew, memory that is short while an admitted turn has no row yet."""

from typing import Any

import mlx.core as mx
import pytest
from makers import LoadGrid, MakeEngine, OpenSystem, prompt_of, prompts_of
from seeded import bug, seeded

from kvactors.core.arena.arena import Arena
from kvactors.core.engine import kv_transfer
from kvactors.core.engine.engine import Engine, EngineConfig
from kvactors.core.model.load import load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.schedule.events import Aborted, Begun, Event, Finished
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.models import PlainTokenizer, grid, tiny_model

SHORT = Sampling(max_tokens=8)
WAIT = 60
LONG = prompt_of(1500)
REST = prompt_of(90, seed=1)
DEVICE_LOST = "Command buffer execution failed: device lost"


def fails(*_: Any) -> Any:
    raise RuntimeError(DEVICE_LOST)


@bug(kv_transfer, "to_raw")
def the_device_is_lost_in_the_export(true: Any) -> Any:
    return fails


@bug(Arena, "export")
def the_device_is_lost_when_the_row_is_kept(true: Any) -> Any:
    return fails


def steps(engine: Engine, most: int = 200) -> list[Event]:
    """All that happens until the engine is idle, which it must be in the end."""
    events: list[Event] = []
    for _ in range(most):
        if not engine.busy:
            return events
        events += engine.step()
    raise AssertionError("the engine is still busy")


@pytest.mark.parametrize(
    "lost", [the_device_is_lost_in_the_export, the_device_is_lost_when_the_row_is_kept]
)
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_turn_whose_end_the_device_did_not_survive_fails_and_is_not_begun_again(
    load_grid: LoadGrid, make_engine: MakeEngine, lost: Any, cancelled: bool
) -> None:
    engine = make_engine(load_grid(), stored=True)
    engine.submit(make_request("a", [], prompt_of(20), Sampling(max_tokens=4)))
    engine.submit(make_request("b", [], prompt_of(25), Sampling(max_tokens=30), serial=1))
    for _ in range(3):
        engine.step()
    if cancelled:
        engine.cancel("a", 0)

    with seeded(lost), pytest.raises(RuntimeError, match="device lost"):
        steps(engine)
    events, left, backlog = engine.abandon()
    again = make_engine(load_grid(), stored=True)
    again.resume(left, backlog)

    assert [event.agent_id for event in events if isinstance(event, Aborted)] == ["a"]
    ended = [event.request for event in steps(again) if isinstance(event, Finished)]
    assert [(request.agent_id, request.decoded) for request in ended] == [("b", 30)]


def test_a_cancel_outlives_the_engine_that_heard_it(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine = make_engine(load_grid())
    for name in "ab":
        engine.submit(make_request(name, [], prompt_of(20), Sampling(max_tokens=50)))
    for _ in range(4):
        engine.step()
    engine.cancel("a", 0)

    _, left, backlog = engine.abandon()
    again = make_engine(load_grid())
    again.resume(left, backlog)

    ended = [event for event in steps(again) if isinstance(event, Finished)]
    assert {event.request.agent_id: event.reason for event in ended} == {
        "a": "cancelled",
        "b": "length",
    }


def test_a_turn_that_only_waited_begins_in_the_next_engine(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine, request = make_engine(load_grid()), make_request("a", [], prompt_of(20), SHORT)
    request.stream = True
    engine.submit(request)
    _, left, backlog = engine.abandon()
    again = make_engine(load_grid())
    again.resume(left, backlog)

    begun = [event for event in steps(again) if isinstance(event, Begun)]

    assert [event.agent_id for event in begun] == ["a"]
    assert again.stats()["misses"] == 1
    assert request.admitted_at > 0


@pytest.mark.slow
def test_an_admitted_turn_without_a_row_keeps_the_cache_that_it_begins_with(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    def answer(*, short: bool) -> list[int]:
        engine = make_engine(load_grid(), budget=1 << 28, stored=True)
        sampling = Sampling(max_tokens=8)
        first = make_request("a", [], prompt_of(600), sampling)
        exported = run_engine(engine, [(0, first)])["a"].exported
        engine.saved("a", sum(part.nbytes for part in exported))
        # The short prompts go first: the second turn of a is admitted, and has no row.
        engine.submit(make_request("b", [], prompt_of(4_000, 1), sampling))
        engine.step()
        second = make_request("a", first.tokens, prompt_of(3_000, 2), sampling, turn=1)
        engine.submit(second)
        engine.submit(make_request("c", [], prompt_of(2_500, 3), sampling))
        engine.step()
        running = engine.memory.running
        assert (second.cached > 600, running.batch_of(second)) == (True, None)
        if short:
            tokens = engine.memory.room // second.form.bytes_of(1) + 1
            engine.prefetch("z", [1] * tokens)
        assert "a" in engine.memory.hot
        steps(engine)
        return second.generated

    assert answer(short=True) == answer(short=False)


def test_turns_that_wait_for_their_kv_do_not_wait_for_each_others_system_prompt(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine = make_engine(load_grid(), stored=True)
    beginning = prompt_of(64)
    for name in "ab":
        engine.prefetch(name, [*beginning, *prompt_of(10)])
    for name in "ab":
        request = make_request(name, [], [*beginning, *prompt_of(20)], Sampling(max_tokens=3))
        request.shared, request.prompt_hash, request.tenant = 64, "the same", ""
        engine.submit(request)
    engine.step()

    for name in "ab":
        engine.provide(name, ())

    ended = [event.request for event in steps(engine) if isinstance(event, Finished)]
    assert sorted(request.agent_id for request in ended) == ["a", "b"]
    assert engine.stats()["shared_tokens"] > 0


def test_what_is_no_number_in_a_row_that_left_is_not_in_those_that_come() -> None:
    def build() -> tuple[Any, PlainTokenizer]:
        model = tiny_model()
        model.model.embed_tokens.weight[7] = mx.nan
        return model, PlainTokenizer()

    loaded = load_model(build, ModelOptions(attention="packed"))

    def said(after: list[int]) -> list[int]:
        stays = make_request("stays", [], prompt_of(20), Sampling(max_tokens=40))
        leaves = make_request("leaves", [], [*after, *[40] * 100], Sampling(max_tokens=2))
        comes = make_request("comes", [], [20 + n for n in range(10)], SHORT)
        engine = Engine(loaded, EngineConfig(8, 1 << 30, stored=False))
        return run_engine(engine, [(0, stays), (2, leaves), (12, comes)])["comes"].request.generated

    assert said([7]) == said([8])


def test_kv_of_a_turn_that_is_given_up_before_another_is_saved_is_not_held_for_ever(
    load_grid: LoadGrid,
) -> None:
    engine, known = Engine(load_grid(), EngineConfig(4, 1 << 26, stored=True)), list[int]()

    def turn(tokens: int) -> int:
        """Bytes of it that wait for the store."""
        engine.submit(make_request("a", known, prompt_of(tokens), SHORT))
        [end] = [event for event in steps(engine) if isinstance(event, Finished)]
        known[:] = end.request.tokens
        return sum(part.nbytes for part in end.exported)

    first = turn(20)
    kept = list(known)
    engine.saved("a", turn(600), 0)
    engine.saved("a", first)
    known[:] = kept
    for _ in range(3):
        engine.saved("a", turn(12))

    assert engine.memory.hot.held.lent_bytes == 0
    assert engine.memory.backlog == 0


@pytest.mark.usefixtures("work_of_a_cpu")
def test_turns_that_do_not_fit_together_wait_and_need_not_give_way(load_grid: LoadGrid) -> None:
    engine = Engine(load_grid(), EngineConfig(16, 1_500_000, False))
    short, prompts = Sampling(max_tokens=4), prompts_of((700,) * 8)

    run_engine(engine, [(0, make_request(f"{n}", [], p, short)) for n, p in enumerate(prompts)])

    assert engine.stats()["preemptions"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("place", [1, 255, 256, 300, 700, 1023, 1024, 1100, 1300, 1499])
def test_a_cut_within_a_long_piece_leaves_no_hole(open_grid: OpenSystem, place: int) -> None:
    system = open_grid(grid)
    cut, alone = system.spawn("cut"), system.spawn("alone")
    cut.ask(LONG, sampling=SHORT).get(timeout=WAIT)
    cut.rewind(to_token=place).get(timeout=WAIT)

    for rest in (REST, REST[:30], REST[30:]):
        begin = LONG[:place] if not alone.transcript().turns else []
        asked = cut.ask(rest, sampling=SHORT).get(timeout=WAIT)
        alone_asked = alone.ask([*begin, *rest], sampling=SHORT).get(timeout=WAIT)
        assert asked.token_ids[-8:] == alone_asked.token_ids[-8:]
        assert asked.cached.get(timeout=WAIT)
        system.check()

    assert cut.transcript().token_ids == alone.transcript().token_ids
