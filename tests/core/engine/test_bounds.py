"""Bounds of a long life: places, what is remembered of others, what is evicted, who spins."""

from collections.abc import Iterable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from makers import LoadGrid, MakeEngine, prompt_of, prompts_of
from seeded import bug, seeded

from kvactors.core.arena.pieces import HeldPieces
from kvactors.core.conversation.hashing import tokens_hash
from kvactors.core.engine import prefix_sharing
from kvactors.core.engine.engine import Engine, EngineConfig
from kvactors.core.engine.prefix_sharing import PrefixSharing
from kvactors.core.errors import InvalidSampling, TurnFailed
from kvactors.core.schedule.events import Event, Finished
from kvactors.core.schedule.sampling import Sampling, draw
from kvactors.core.testing.engines import make_request, run_engine

SHORT = Sampling(max_tokens=4)


def finished(events: Iterable[Event]) -> list[Finished]:
    return [event for event in events if isinstance(event, Finished)]


def steps(engine: Engine, most: int = 3000) -> list[Event]:
    events: list[Event] = []
    for _ in range(most):
        if not engine.busy:
            return events
        events += engine.step()
    raise AssertionError("the engine is still busy")


def test_a_cache_of_less_than_a_block_is_forked(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine = make_engine(load_grid(), max_batch=1)
    first = make_request("a", [], prompt_of(600), SHORT)
    run_engine(engine, [(0, first)])
    engine.submit(make_request("long", [], prompt_of(50), Sampling(max_tokens=200)))
    engine.step()
    other = make_request("a", first.tokens[:120], prompt_of(40, 3), SHORT, turn=1)
    engine.submit(other)
    engine.step()
    # Waiting, it is cut to what it goes on from, and holds no block.
    engine.memory.hot.keep_common("a", other.tokens, other.form.spec)
    engine.cancel("a", None, TurnFailed("late"))
    engine.step()

    engine.memory.fork("a", "c")

    engine.check()
    hot = engine.memory.hot.get("c")
    assert hot is not None
    assert hot.end == 120


def test_who_was_prefetched_takes_no_more_places_than_there_are(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine = make_engine(load_grid(), max_batch=2, stored=True)
    names = "abcde"
    for name, prompt in zip(names, prompts_of([20] * 5), strict=True):
        engine.prefetch(name, prompt)
        engine.submit(make_request(name, prompt, [1, 2], Sampling(max_tokens=9)))
    for name in names:
        engine.provide(name, ())

    most, events = 0, list[Event]()
    while engine.busy:
        events += engine.step()
        most = max(most, len(engine.memory.running.active))

    assert most == 2
    assert sorted(end.request.agent_id for end in finished(events)) == list(names)


def test_a_turn_that_is_cancelled_while_it_waits_saves_nothing_of_one_that_was_undone(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine = make_engine(load_grid(), max_batch=2, stored=True)
    first = make_request("a", [], prompt_of(400), SHORT)
    exported = run_engine(engine, [(0, first)])["a"].exported
    engine.saved("a", sum(part.nbytes for part in exported))
    engine.submit(make_request("a", first.tokens, prompt_of(3000, 2), SHORT, turn=1, serial=1))
    hot = engine.memory.hot.get("a")
    assert hot is not None
    while hot.end < 2048:
        engine.step()
    engine.cancel("a", 1, TurnFailed("late"))
    steps(engine)
    for name, prompt in zip("bc", prompts_of([30, 30], 5), strict=True):
        engine.submit(make_request(name, [], prompt, Sampling(max_tokens=60)))
    engine.step()
    third = make_request("a", first.tokens, prompt_of(9, 3), SHORT, turn=1, serial=2)
    engine.submit(third)
    engine.step()

    engine.cancel("a", 2)

    ends = [end for end in finished(steps(engine)) if end.request.agent_id == "a"]
    assert [end.reason for end in ends] == ["cancelled"]
    for part in ends[0].exported:
        assert part.end <= len(third.tokens)
        assert part.tokens_hash == tokens_hash(third.tokens[: part.end])


@pytest.mark.parametrize("alike", [False, True])
def test_whose_system_prompt_it_was_is_not_remembered_for_ever(
    load_grid: LoadGrid, make_engine: MakeEngine, alike: bool
) -> None:
    loaded = load_grid()
    hot = make_engine(loaded).memory.hot
    sharing, most = PrefixSharing(loaded, hot), 64 if alike else 100
    with seeded(bug(prefix_sharing, "MOST_BEGINNINGS")(lambda _: most)):
        for number in range(most + 200):
            request = make_request(f"{number}", [], prompt_of(70), SHORT)
            request.shared, request.tenant = 64, ""
            request.prompt_hash = "the same" if alike else f"{number}"
            hot.adopt(request.agent_id, [], request.tokens)
            sharing.offer(request)

    assert len(sharing) == most


@pytest.mark.slow
def test_what_cannot_fit_beside_who_runs_evicts_nobody(load_grid: LoadGrid) -> None:
    engine = Engine(load_grid(), EngineConfig(16, 6_000_000, False))
    idle = zip("xyz", prompts_of((300,) * 3), strict=True)
    run_engine(engine, [(0, make_request(name, [], prompt, SHORT)) for name, prompt in idle])
    for name in ("long", "other"):
        engine.submit(make_request(name, [], prompt_of(2600), Sampling(max_tokens=100)))
    for _ in range(30):
        engine.step()
    active = [request.agent_id for request in engine.memory.running.active]

    assert (active, engine.stats()["evictions"]) == (["long"], 0)
    assert all(name in engine.memory.hot for name in "xyz")
    assert len(finished(steps(engine))) == 2


def test_an_engine_that_waits_for_the_store_alone_is_not_busy(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine = make_engine(load_grid(), max_batch=2, stored=True)
    engine.submit(make_request("a", prompt_of(30), [1], SHORT))
    engine.step()
    later = make_request("b", [], [1, 2], SHORT)
    later.priority = -1
    engine.submit(later)
    engine.step()

    assert not engine.busy
    engine.provide("a", ())
    assert engine.busy
    assert len(finished(steps(engine))) == 2


def test_an_eviction_policy_that_raises_leaves_it_to_the_longest_idle(
    load_grid: LoadGrid, caplog: pytest.LogCaptureFixture
) -> None:
    seen = list[float]()

    def raises(idle: Any, now: float) -> Any:
        seen.extend(agent.last_used for agent in idle)
        raise ZeroDivisionError(now)

    engine = Engine(load_grid(), EngineConfig(4, 1_500_000, False, eviction=raises))
    prompts = prompts_of((700,) * 6)

    ends = run_engine(
        engine, [(9 * n, make_request(f"{n}", [], p, SHORT)) for n, p in enumerate(prompts)]
    )

    assert len(ends) == 6
    assert engine.stats()["evictions"] > 0
    assert "the eviction policy raised" in caplog.text
    assert min(seen) > 0


def test_whom_an_eviction_policy_spares_leave_before_a_turn_waits_for_ever(
    load_grid: LoadGrid,
) -> None:
    spares: Any = lambda _idle, _now: [[]]  # noqa: E731
    engine = Engine(load_grid(), EngineConfig(4, 1_500_000, False, eviction=spares))

    ends = run_engine(
        engine,
        [
            (9 * n, make_request(f"{n}", [], prompt, SHORT))
            for n, prompt in enumerate(prompts_of((700,) * 6))
        ],
    )

    assert len(ends) == 6
    assert engine.stats()["evictions"] > 0


def test_a_turn_that_gives_way_is_not_passed_over_for_ever(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine = make_engine(load_grid(), max_batch=2)
    observed = make_request("o", [], prompt_of(5), SHORT, answer=False)
    observed.priority = -1
    lengths = {"a": 3, "b": 6, "c": 9}
    for name, length in lengths.items():
        engine.submit(make_request(name, [], prompt_of(5), Sampling(max_tokens=length)))
    engine.submit(observed)

    for serial in range(100):
        for end in finished(engine.step()):
            if end.request is observed:
                return
            # There is always one who may go first.
            name, again = end.request.agent_id, Sampling(max_tokens=9)
            engine.submit(make_request(name, [], prompt_of(5), again, serial=serial))
    raise AssertionError("it is still waiting")


class Watched:
    """As a piece, which says when its size is asked for."""

    asked = 0

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes

    @property
    def nbytes(self) -> int:
        Watched.asked += 1
        return self._nbytes


def test_what_only_the_store_holds_is_counted_as_it_changes() -> None:
    rng, held = np.random.default_rng(1), HeldPieces()
    pieces: list[Any] = [Watched(int(size)) for size in rng.integers(1, 100, 20)]
    agents, store = dict.fromkeys(pieces, 0), dict.fromkeys(pieces, 0)
    for _ in range(500):
        piece, act = pieces[rng.integers(20)], rng.integers(4)
        if act == 0:
            held.hold([piece])
            agents[piece] += 1
        elif act == 1 and agents[piece]:
            held.release([piece])
            agents[piece] -= 1
        elif act == 2 and agents[piece]:
            held.lend(piece)
            store[piece] += 1
        elif act == 3 and store[piece]:
            held.take_back(piece)
            store[piece] -= 1
        asked = Watched.asked
        found = held.cached_bytes
        assert Watched.asked == asked, "it is known, and not summed up"
        assert found == sum(p.nbytes for p in pieces if agents[p])
        assert held.lent_bytes == sum(p.nbytes * count for p, count in store.items())
        assert held.nbytes == sum(p.nbytes for p in pieces if agents[p] or store[p])


def test_parameters_that_are_zero_as_floats_are_as_narrow_as_can_be() -> None:
    assert Sampling(temperature=1e-40).greedy
    with pytest.raises(InvalidSampling, match=r"temperature must be a number in \[0, 1e\+06\]"):
        Sampling(temperature=1e39)
    assert not Sampling(temperature=1e-3).greedy
    narrow, rising = Sampling(temperature=1.0, top_p=1e-46).filters, mx.arange(128.0)
    assert {draw(rising, narrow, mx.random.key(n), None).item() for n in range(8)} == {127}


@pytest.mark.parametrize(("penalty", "sign"), [(1e-46, 1.0), (1e39, -1.0)])
def test_a_penalty_that_no_float_holds_is_as_strong_as_can_be(penalty: float, sign: float) -> None:
    strong = Sampling(temperature=1.0, repetition_penalty=penalty)
    # All of them were infinite, and none likelier than another.
    logits, known = mx.sort(sign * mx.arange(1.0, 9.0)), mx.arange(8)

    drawn = {draw(logits, strong.filters, mx.random.key(n), known).item() for n in range(8)}

    assert drawn == {7}


def test_a_stop_string_has_a_length() -> None:
    assert Sampling(stop=("x" * 1000,)).stop
    with pytest.raises(InvalidSampling, match="1000 characters"):
        Sampling(stop=("ok", "x" * 1001))
