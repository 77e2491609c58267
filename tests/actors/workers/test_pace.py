"""A save rests while somebody reads tokens as they come, and never while somebody waits for it."""

from collections.abc import Callable
from functools import partial
from itertools import count
from threading import Event
from typing import Any

import pytest

from kvactors.actors import AgentSystem, Sampling
from kvactors.actors.testing import use_actors
from kvactors.actors.turns.messages_store import Flush
from kvactors.actors.workers.pacing import LONGEST_DELAY, NAP, REST, Pace
from kvactors.actors.workers.persistence import PersistenceActor
from kvactors.core.engine.engine import Engine, EngineConfig
from kvactors.core.model.load import LoadedModel
from kvactors.core.testing.engines import make_request, run_engine

LONG = Sampling(max_tokens=4000)


class Clock:
    """CPU seconds that go on when told."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def never() -> bool:
    return False


def test_it_rests_for_as_long_as_its_share_asks() -> None:
    clock, naps = Clock(), list[float]()
    rest = Pace(never, naps.append, clock)
    clock.seconds += 0.001
    rest()
    assert sum(naps) == pytest.approx(REST * 0.001)
    assert max(naps) <= NAP
    rest()
    assert sum(naps) == pytest.approx(REST * 0.001), "it has not worked since"


def test_a_group_of_saves_is_delayed_by_no_more_than_the_longest_delay() -> None:
    clock, naps = Clock(), list[float]()
    rest = Pace(never, naps.append, clock)
    for _ in range(10):
        clock.seconds += LONGEST_DELAY / REST / 3
        rest()
    assert sum(naps) == pytest.approx(LONGEST_DELAY)


def test_it_goes_on_as_soon_as_somebody_waits() -> None:
    clock, naps = Clock(), list[float]()
    rest = Pace(lambda: len(naps) >= 3, naps.append, clock)
    clock.seconds += 1.0
    rest()
    assert len(naps) == 3


Nap = Callable[[float], object]


def resting(system: AgentSystem, nap: Nap) -> None:
    """Let the rests of all saves be naps, as if each step took a second of work."""

    class Resting(PersistenceActor):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(
                *args, **options, pace=lambda hurried: Pace(hurried, nap, count().__next__)
            )

    use_actors(system, persistence=Resting)


@pytest.fixture
def naps() -> list[float]:
    """The rests of all saves, which take no time."""
    return []


@pytest.fixture
def open_resting(
    open_system: Callable[..., AgentSystem], naps: list[float]
) -> Callable[..., AgentSystem]:
    """Systems whose rests are `naps`."""

    def start(nap: Nap = naps.append, **options: Any) -> AgentSystem:
        return open_system(prepare=partial(resting, nap=nap), **options)

    return start


def save(system: AgentSystem) -> None:
    """Have a turn saved."""
    reply = system.spawn("writer").ask("hello", sampling=Sampling(max_tokens=2)).get(timeout=60)
    assert reply.cached.get(timeout=60)


def save_beside_a_stream(system: AgentSystem) -> None:
    """Have a turn saved while somebody reads the tokens of another."""
    with system.spawn("decoder").stream("a story", sampling=LONG) as story:
        next(story)
        save(system)


def test_a_save_beside_a_stream_rests(
    open_resting: Callable[..., AgentSystem], naps: list[float]
) -> None:
    system = open_resting()
    save_beside_a_stream(system)
    assert sum(naps) == pytest.approx(LONGEST_DELAY)


def test_a_save_beside_a_turn_that_nobody_reads_does_not(
    open_resting: Callable[..., AgentSystem], naps: list[float]
) -> None:
    system = open_resting()
    decoder = system.spawn("decoder")
    story = decoder.ask("a story", sampling=LONG)
    save(system)
    assert not story.done, "it has decoded beside the save"
    decoder.cancel()
    assert not naps


def test_a_save_beside_a_stream_does_not_rest_while_a_turn_waits_to_begin(
    open_resting: Callable[..., AgentSystem], naps: list[float]
) -> None:
    system = open_resting(max_batch=2)
    with system.spawn("decoder").stream("a story", sampling=LONG) as story:
        next(story)
        first = system.spawn("first").ask("hello", sampling=Sampling(max_tokens=2))
        others = [system.spawn(name) for name in ("second", "third")]
        asked = [agent.ask("a story", sampling=LONG) for agent in others]
        assert first.get(timeout=60).cached.get(timeout=60)
        assert not asked[0].done, "so the third one waits"
        for agent in others:
            agent.cancel()
    assert not naps


def test_a_save_beside_a_stream_does_not_rest_where_no_turn_is_taken_before_it_is_written(
    open_resting: Callable[..., AgentSystem], naps: list[float]
) -> None:
    system = open_resting(max_unsaved=1)
    save_beside_a_stream(system)
    assert not naps


def test_nobody_watches_where_those_who_can_leave_would_not_free_half_of_the_memory(
    load_grid: Callable[..., LoadedModel],
) -> None:
    engine = Engine(load_grid(), EngineConfig(1, 1 << 30, stored=False))
    run_engine(engine, [(0, make_request("idle", [], [1] * 600, Sampling(max_tokens=1)))])
    request = make_request("a", [], [2] * 600, Sampling(max_tokens=50))
    request.stream = True
    engine.submit(request)
    while not request.decoded:
        engine.step()

    memory = engine.memory
    stays = memory.used - engine.memory.hot.held.nbytes + memory.expected
    assert engine.memory.hot.held.nbytes > 0
    memory.budget = 2 * stays
    assert engine.streaming
    memory.budget -= 2
    assert not engine.streaming


def test_a_save_does_not_rest_while_the_store_is_asked_for_something(
    open_resting: Callable[..., AgentSystem], naps: list[float]
) -> None:
    def disturbed(seconds: float) -> None:
        naps.append(seconds)
        system.parts.lifecycle.persistence.tell(Flush())

    system = open_resting(disturbed)
    save_beside_a_stream(system)
    assert len(naps) == 1


def test_a_save_does_not_rest_once_somebody_asks_to_forget_an_agent(
    open_resting: Callable[..., AgentSystem], naps: list[float]
) -> None:
    def nap(seconds: float) -> None:
        naps.append(seconds)
        # As long as it takes, about, until what is asked next has come.
        Event().wait(0.1)

    system = open_resting(nap)
    system.spawn("other")
    with system.spawn("decoder").stream("a story", sampling=LONG) as story:
        next(story)
        writer = system.spawn("writer")
        reply = writer.ask("hello", sampling=Sampling(max_tokens=2)).get(timeout=60)
        system.forget("other")
        assert reply.cached.done, "it was written before the store forgot anybody"
    assert sum(naps) < LONGEST_DELAY


def test_the_one_thread_of_deterministic_mode_never_rests(
    open_resting: Callable[..., AgentSystem], naps: list[float]
) -> None:
    system = open_resting(deterministic=True, seed=1)
    save_beside_a_stream(system)
    assert not naps
