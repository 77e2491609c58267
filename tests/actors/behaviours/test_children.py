"""Behaviours that others begin: they end with their parent, and begin anew with it."""

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
    SystemStopped,
)
from kvactors.actors.runtime.blocking_pool import AT_ONCE

WAIT = 60


def test_who_has_ended_begins_no_child(system: AgentSystem) -> None:
    made, gate = list[Any](), threading.Event()

    class Leaves(AgentBehaviour):
        async def on_message(self, message: Any, sender: Agent | None) -> None:
            for _ in range(AT_ONCE):
                self.run_blocking(lambda: gate.wait(WAIT))
            made.append(self.spawn("child", behaviour=Echo()))
            self.stop()

    parent = system.spawn("parent", behaviour=Leaves())
    ended = system.watch(parent)
    parent.deliver("go")
    ended.get(timeout=WAIT)
    # Now there is a thread for it.
    gate.set()

    with pytest.raises(SystemStopped, match="'parent', whose child it is, has ended"):
        made[0].get(timeout=WAIT)


def test_a_parent_that_restarts_may_begin_the_child_anew_that_failed(system: AgentSystem) -> None:
    class Child(AgentBehaviour):
        reentrant = True

        async def on_message(self, message: Any, sender: Agent | None) -> Any:
            if message == "fail":
                raise ValueError(message)
            if message != "wait":
                return message
            try:
                waits.set()
                await self.run_blocking(lambda: gate.wait(WAIT))
            finally:
                # Its parent must not begin anew meanwhile.
                begun.wait(0.5)

    class Parent(AgentBehaviour):
        async def on_start(self) -> None:
            await self.spawn("child", behaviour=Child(), supervision=Supervision("escalate"))
            begun.set()

        async def on_message(self, message: Any, sender: Agent | None) -> Any:
            return await self.ask("child", message)

    waits, begun, gate = threading.Event(), threading.Event(), threading.Event()
    again = Supervision("restart", backoff=0)
    parent = system.spawn("parent", behaviour=Parent, supervision=again)
    assert parent.request("ping").get(timeout=WAIT) == "ping"
    child = system.spawn("child")
    child.deliver("wait")
    assert waits.wait(WAIT)

    begun.clear()
    child.deliver("fail")
    assert begun.wait(WAIT)
    gate.set()
    assert system.wait_idle(WAIT)

    assert parent.request("ping").get(timeout=WAIT) == "ping"


def test_who_asked_a_parent_that_ends_with_its_child_is_told_why(system: AgentSystem) -> None:
    class Child(AgentBehaviour):
        async def on_message(self, message: Any, sender: Agent | None) -> Any:
            raise ValueError(message)

    class Parent(AgentBehaviour):
        async def on_message(self, message: Any, sender: Agent | None) -> Any:
            await self.spawn("child", behaviour=Child(), supervision=Supervision("escalate"))
            return await self.ask("child", message)

    parent = system.spawn("parent", behaviour=Parent())

    with pytest.raises(BehaviourFailed, match="'parent' was stopped") as raised:
        parent.request("broken").get(timeout=WAIT)
    assert repr(raised.value.__cause__) == "ValueError('broken')"


def test_a_parent_need_not_have_a_behaviour(system: AgentSystem) -> None:
    system.spawn("plain")

    child = system.spawn("child", behaviour=Echo(), parent="plain")

    assert child.request("there?").get(timeout=WAIT) == "there?"
