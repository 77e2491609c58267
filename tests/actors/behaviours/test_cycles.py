"""Agents that wait for each other: circles are refused, long waits seen, and an ask that is given
up leaves nobody waiting."""

import threading
from typing import Any

import pytest
from behaviours import Does, DoesBlocking, DoesMuch, Recorder, asks, seven, spawn
from makers import OpenSystem

from kvactors.actors import Agent, AgentBehaviour, AgentSystem, AskCycle, TurnTimeout
from kvactors.actors.testing import VirtualTimer

WAIT = 60


class Delegates(AgentBehaviour):
    """Answers with the future that what it is sent gives."""

    def on_message(self, message: Any, sender: Agent | None) -> Any:
        return message(self)


@pytest.mark.parametrize("names", ["ba", "bca"])
def test_an_ask_that_closes_a_circle_raises_and_nobody_waits(
    system: AgentSystem, names: str
) -> None:
    a, *_ = spawn(system, a=Does(), b=Does(), c=Does())

    with pytest.raises(AskCycle, match="'a' -> 'b' -> " if names == "ba" else "'a' -> 'b' -> 'c'"):
        a.request(asks(names)).get(timeout=WAIT)

    assert system.wait_idle(WAIT)
    assert a.request(seven).get(timeout=WAIT) == 7


def test_the_ask_that_closes_it_may_be_caught(system: AgentSystem) -> None:
    a, _ = spawn(system, a=Does(), b=Does())

    async def careful(me: AgentBehaviour) -> str:
        try:
            return str(await me.ask("a", seven))
        except AskCycle:
            return "busy"

    assert a.request(asks("b", careful)).get(timeout=WAIT) == "busy"


def test_a_circle_through_one_that_handles_many_messages_is_one(system: AgentSystem) -> None:
    a, _ = spawn(system, a=Does(), b=DoesMuch())

    with pytest.raises(AskCycle):
        a.request(asks("ba")).get(timeout=WAIT)
    assert system.wait_idle(WAIT)


def test_one_that_handles_many_messages_may_be_asked_back(system: AgentSystem) -> None:
    a, _ = spawn(system, a=DoesMuch(), b=Does())

    assert a.request(asks("ba")).get(timeout=WAIT) == 7


def test_an_answer_that_is_left_to_another_counts(system: AgentSystem) -> None:
    a, _ = spawn(system, a=Does(), b=Delegates())

    async def ask(me: AgentBehaviour) -> Any:
        return await me.ask("b", lambda b: b.ask("a", seven))

    with pytest.raises(AskCycle):
        a.request(ask).get(timeout=WAIT)
    assert system.wait_idle(WAIT)


def test_a_thread_of_its_own_waits_in_circles_no_more_than_others(system: AgentSystem) -> None:
    a, _ = spawn(system, a=Does(), b=DoesBlocking())

    async def ask(me: AgentBehaviour) -> Any:
        return await me.ask("b", lambda b: b.ask("a", seven).get())

    with pytest.raises(AskCycle):
        a.request(ask).get(timeout=WAIT)
    assert system.wait_idle(WAIT)


@pytest.mark.parametrize("kind", [Does, DoesBlocking])
def test_requests_by_handle_wait_in_circles_no_more_than_asks(
    system: AgentSystem, kind: type[AgentBehaviour]
) -> None:
    a, b = spawn(system, a=Does(), b=kind())

    async def back(_: AgentBehaviour) -> Any:
        return await a.request(seven)

    asked_back = back if kind is Does else (lambda _: a.request(seven).get())

    async def ask(_: AgentBehaviour) -> Any:
        return await b.request(asked_back)

    with pytest.raises(AskCycle, match=r"'a' -> 'b' -> 'a'|'b' -> 'a' -> 'b'"):
        a.request(ask).get(timeout=WAIT)
    assert system.wait_idle(WAIT)


def test_a_namesake_in_another_system_is_somebody_else(
    system: AgentSystem, open_system: OpenSystem
) -> None:
    (a,) = spawn(system, a=DoesBlocking())
    other = open_system(store=False)
    _, b = spawn(other, a=Does(), b=Does())

    found = a.request(lambda _: b.request(asks("a")).get())

    assert found.get(timeout=WAIT) == 7
    assert system.health().waiting == other.health().waiting == ()


def test_one_that_waits_for_its_own_answer_by_its_handle_is_a_circle(system: AgentSystem) -> None:
    (a,) = spawn(system, a=Does())

    async def ask(_: AgentBehaviour) -> Any:
        return await a.request(seven)

    with pytest.raises(AskCycle, match="'a' -> 'a'"):
        a.request(ask).get(timeout=WAIT)
    assert system.wait_idle(WAIT)


def test_what_is_asked_and_not_waited_for_is_no_circle(system: AgentSystem) -> None:
    a, _ = spawn(system, a=Does(), b=Does())
    later: list[Any] = []

    async def leave_it(me: AgentBehaviour) -> int:
        later.append(me.ask("a", seven))
        return 8

    assert a.request(asks("b", leave_it)).get(timeout=WAIT) == 8
    assert later[0].get(timeout=WAIT) == 7


def test_a_circle_with_a_time_limit_ends_by_itself(
    open_system: OpenSystem,
) -> None:
    timer = VirtualTimer()
    system = open_system(store=False, timer=timer)
    a, _ = spawn(system, a=Does(), b=Does())
    begun = threading.Event()

    async def back(me: AgentBehaviour) -> Any:
        future = me.ask("a", seven)
        begun.set()
        return await future

    answer = a.request(asks("b", back, timeout=5))
    assert begun.wait(WAIT)
    timer.let_pass(5)

    with pytest.raises(TurnTimeout):
        answer.get(timeout=WAIT)
    while not system.wait_idle(0.05):
        timer.let_pass(1)  # Its restart is due.


def test_an_ask_that_is_given_up_ends_what_it_began(open_system: OpenSystem) -> None:
    timer = VirtualTimer()
    system = open_system(store=False, timer=timer)
    a, _, c = spawn(system, a=Does(), b=Does(), c=Does())
    waits, ended, told = threading.Event(), threading.Event(), Recorder()
    system.spawn("told", behaviour=told)

    async def for_ever(me: AgentBehaviour) -> None:
        future = me.run_blocking(gate.wait)
        waits.set()
        try:
            await future
            await me.send("told", "too late")
        finally:
            ended.set()

    gate = threading.Event()
    answer = a.request(asks("bc", for_ever), timeout=5)
    assert waits.wait(WAIT)
    queued = c.request(seven)
    timer.let_pass(5)

    with pytest.raises(TurnTimeout):
        answer.get(timeout=WAIT)
    assert ended.wait(WAIT)
    assert queued.get(timeout=WAIT) == 7
    gate.set()
    assert system.wait_idle(WAIT)
    assert told.seen == []


def test_what_was_given_up_before_it_began_never_begins(open_system: OpenSystem) -> None:
    timer = VirtualTimer()
    system = open_system(store=False, timer=timer)
    (a,) = spawn(system, a=Does())
    gate, begun = threading.Event(), list[int]()

    async def busy(me: AgentBehaviour) -> None:
        await me.run_blocking(gate.wait)

    async def note(_: AgentBehaviour) -> None:
        begun.append(1)

    first, late = a.request(busy), a.request(note, timeout=5)
    timer.let_pass(5)
    with pytest.raises(TurnTimeout):
        late.get(timeout=WAIT)
    gate.set()

    first.get(timeout=WAIT)
    assert system.wait_idle(WAIT)
    assert begun == []


@pytest.mark.parametrize("how", ["ask", "request"])
def test_whoever_waits_longer_than_the_watchdog_is_in_health_and_in_the_log_once(
    open_system: OpenSystem, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    timer = VirtualTimer()
    system = open_system(store=False, timer=timer, watchdog=40)
    a, b = spawn(system, a=Does(), b=Does())
    gate, begun = threading.Event(), threading.Event()

    async def by_handle(_: AgentBehaviour) -> Any:
        return await b.request(slow)

    async def slow(me: AgentBehaviour) -> None:
        future = me.run_blocking(gate.wait)
        begun.set()
        await future

    answer = a.request(asks("b", slow) if how == "ask" else by_handle)
    assert begun.wait(WAIT)
    assert system.health().waiting == ()
    timer.let_pass(60)

    assert system.health().waiting == ("'a' has waited 60 s for the answer of 'b'",)
    gate.set()
    answer.get(timeout=WAIT)
    assert system.health().waiting == ()
    timer.let_pass(60)
    assert caplog.text.count("'a' has waited") == 1
