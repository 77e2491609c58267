"""Answers that several messages wait for: who gives up does so for itself alone; and what is made
of an answer."""

import threading
from typing import Any

import pytest
from behaviours import Echo

from kvactors.actors import (
    Agent,
    AgentBehaviour,
    AgentSystem,
    BehaviourFailed,
    Supervision,
    TurnTimeout,
)

WAIT = 60


@pytest.mark.parametrize("how", ["forwards", "awaits", "on a thread"])
def test_who_gives_up_does_not_give_up_what_others_wait_for_too(
    system: AgentSystem, how: str
) -> None:
    gate, asked = threading.Event(), threading.Semaphore(0)

    class Slow(AgentBehaviour):
        async def on_message(self, message: Any, sender: Agent | None) -> str:
            await self.run_blocking(lambda: gate.wait(WAIT))
            return "fetched"

    class Cache(AgentBehaviour):
        reentrant = True
        pending: Any = None

        def on_message(self, message: Any, sender: Agent | None) -> Any:
            self.pending = self.pending or self.ask("slow", message)
            asked.release()
            return self.pending if how == "forwards" else self.later_on(message)

        async def later_on(self, message: Any) -> Any:
            if how == "awaits" or message == "impatient":
                return await self.pending
            return await self.run_blocking(self.pending.get)

    system.spawn("slow", behaviour=Slow())
    cache = system.spawn("cache", behaviour=Cache())
    patient = cache.request("patient")
    assert asked.acquire(timeout=WAIT)

    with pytest.raises(TurnTimeout):
        cache.request("impatient", timeout=0.2).get(timeout=WAIT)
    gate.set()

    assert patient.get(timeout=WAIT) == "fetched"


def test_what_a_restart_dropped_does_not_keep_others_from_giving_up(system: AgentSystem) -> None:
    gate, asked, given_up = threading.Event(), threading.Semaphore(0), threading.Event()

    class Slow(AgentBehaviour):
        async def on_message(self, message: Any, sender: Agent | None) -> None:
            try:
                await self.run_blocking(lambda: gate.wait(WAIT))
            finally:
                given_up.set()

    class Cache(AgentBehaviour):
        reentrant = True
        pending: Any = None

        async def on_message(self, message: Any, sender: Agent | None) -> Any:
            if message == "fail":
                raise ValueError(message)
            self.pending = self.pending or self.ask("slow", message)
            asked.release()
            return await self.pending

    system.spawn("slow", behaviour=Slow())
    cache = system.spawn("cache", behaviour=Cache(), supervision=Supervision("restart", backoff=0))
    dropped = cache.request("key")
    assert asked.acquire(timeout=WAIT)
    with pytest.raises(ValueError, match="fail"):
        cache.request("fail").get(timeout=WAIT)
    with pytest.raises(BehaviourFailed):
        dropped.get(timeout=WAIT)

    with pytest.raises(TurnTimeout):
        cache.request("key", timeout=0.2).get(timeout=WAIT)

    assert given_up.wait(WAIT / 4)
    gate.set()


@pytest.mark.parametrize("how", ["forwards", "awaits"])
def test_what_is_made_of_an_answer_is_waited_for_as_the_answer_is(
    system: AgentSystem, how: str
) -> None:
    class Asks(AgentBehaviour):
        def on_message(self, message: str, sender: Agent | None) -> Any:
            shouted = self.ask("echo", message).map(str.upper)
            return shouted if how == "forwards" else self.awaited(shouted)

        async def awaited(self, shouted: Any) -> Any:
            return await shouted

    system.spawn("echo", behaviour=Echo())
    asks = system.spawn("asks", behaviour=Asks())

    answer = asks.request("hello").map(lambda text: text + "!").get(timeout=WAIT)

    assert answer == "HELLO!"
