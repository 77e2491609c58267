"""The queue of waiting turns: its order is that of the plain rule, whatever happens to it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from makers import Ticks

from kvactors.core.engine.engine import Engine, EngineConfig
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.schedule.waiting import PATIENCE, WaitingTurns
from kvactors.core.testing.engines import make_request


def turn(agent_id: str, priority: int = 0) -> Request:
    request = make_request(agent_id, [], [1], Sampling())
    request.priority = priority
    return request


class QueueMachine(RuleBasedStateMachine):
    """Turns enter, are passed over, leave and come back; beside it a list with plain counters."""

    turns = Bundle("turns")
    gone = Bundle("gone")

    def __init__(self) -> None:
        super().__init__()
        self.queue = WaitingTurns()
        self.passed: dict[Request, int] = {}

    @rule(target=turns, agent=st.sampled_from("abc"), priority=st.integers(-2, 2))
    def enters(self, agent: str, priority: int) -> Request:
        request = turn(agent, priority)
        self.queue.add(request)
        self.passed[request] = 0
        return request

    @rule(times=st.integers(1, 2 * PATIENCE))
    def others_are_admitted(self, times: int) -> None:
        for _ in range(times):
            self.queue.admitted()
        self.passed = {request: count + times for request, count in self.passed.items()}

    @rule(target=gone, request=consumes(turns))
    def leaves(self, request: Request) -> Request:
        self.queue.remove(request)
        assert request.passed_over == self.passed.pop(request)
        return request

    @rule(target=turns, request=consumes(gone))
    def comes_back(self, request: Request) -> Request:
        self.queue.add(request)
        self.passed[request] = request.passed_over
        return request

    @invariant()
    def the_order_is_that_of_the_rule(self) -> None:
        def by_rule(request: Request) -> tuple[int, int]:
            return -(request.priority + self.passed[request] // PATIENCE), request.arrival

        expected = sorted(self.passed, key=by_rule)
        assert list(self.queue) == expected
        assert self.queue.first(2) == expected[:2]
        assert len(self.queue) == len(expected)
        self.queue.check()


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=60, deadline=None)


def test_an_agents_turns_are_found_without_a_look_at_the_others() -> None:
    queue, alice = WaitingTurns(), turn("alice")
    queue.add(turn("bob"))
    queue.add(alice)

    assert queue.of("alice") == [alice]
    assert alice in queue
    assert queue.of("carol") == []


def test_turns_out_of_order_do_not_pass_the_check() -> None:
    queue, first, second = WaitingTurns(), turn("a"), turn("b")
    queue.add(first)
    queue.add(second)

    first.arrival, second.arrival = second.arrival, first.arrival

    with pytest.raises(AssertionError, match="out of order"):
        queue.check()


class Watched(Request):
    """A turn that counts how often anything of any such turn is read."""

    reads = 0

    def __getattribute__(self, name: str) -> Any:
        Watched.reads += 1
        return super().__getattribute__(name)


def watched(plain: Request) -> Watched:
    fields = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
    return Watched(**fields)


@pytest.mark.parametrize("sharing", [False, True], ids=["alone", "with a beginning in common"])
def test_a_step_reads_no_more_of_four_thousand_waiting_turns_than_of_four_hundred(
    load_grid: Callable[..., LoadedModel], sharing: bool
) -> None:
    reads = {}
    for count in (400, 4_000):
        engine = Engine(load_grid(), EngineConfig(2, 1 << 30, stored=False, target_latency=1e-9))
        for number in range(count):
            request = watched(make_request(f"{number}", [], [1] * 600, Sampling(max_tokens=9)))
            if sharing:
                request.shared, request.prompt_hash, request.tenant = 512, "the same", ""
            engine.submit(request)
        engine.step()
        Watched.reads = 0
        for _ in range(5):
            engine.step()
            assert engine.busy
        reads[count] = Watched.reads

    assert engine.stats()["waiting"] > 3_900
    # A search among ten times as many compares a few more.
    assert reads[4_000] < reads[400] + 50


def test_who_runs_is_not_looked_through_for_each_turn_that_waits(
    load_grid: Callable[..., LoadedModel],
) -> None:
    reads = {}
    for count in (3, 30):
        engine = Engine(load_grid(), EngineConfig(40, 6_000_000, stored=False), clock=Ticks())
        engine.submit(watched(make_request("long", [], [1] * 2600, Sampling(max_tokens=100))))
        for number in range(count):
            request = make_request(f"{number}", [], [2] * 2600, Sampling(max_tokens=100))
            request.shared, request.prompt_hash, request.tenant = 512, "the same", ""
            engine.submit(request)
        for _ in range(30):
            engine.step()
        Watched.reads = 0
        engine.step()
        reads[count] = Watched.reads
        # There is room for no other.
        assert [request.agent_id for request in engine.memory.running.active] == ["long"]

    assert reads[30] == reads[3] > 0
