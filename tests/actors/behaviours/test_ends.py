"""How behaviours begin and end among others: what is left of what they were doing."""

import threading
from functools import partial
from typing import Any

import pytest
from behaviours import Does, DoesBlocking, DoesMuch, Echo
from makers import OpenSystem

from kvactors.actors import (
    Agent,
    AgentBehaviour,
    AgentSystem,
    BehaviourFailed,
    Sampling,
    Supervision,
    SystemStopped,
    Undelivered,
)
from kvactors.actors.agents.actor import AgentActor
from kvactors.actors.testing import use_actors
from kvactors.actors.turns.messages_agent import Prefetch
from kvactors.core.testing.models import Faulty, PlainTokenizer, tiny_model

SHORT = Sampling(max_tokens=4)
WAIT = 60


# -- ends ------------------------------------------------------------------------------


def test_a_reentrant_behaviour_handles_nothing_before_it_has_started(
    held: tuple[AgentSystem, Faulty],
) -> None:
    system, model = held
    events: list[str] = []

    class Slow(AgentBehaviour):
        reentrant = True

        async def on_start(self) -> None:
            await self.think([1], sampling=SHORT)
            events.append("started")

        async def on_message(self, message: Any, sender: Agent | None) -> None:
            events.append(message)

    gate = threading.Event()
    model.arm(hold=gate)
    slow = system.spawn("slow", behaviour=Slow())
    slow.deliver("message").get(timeout=WAIT)
    assert model.reached.wait(WAIT)
    gate.set()

    assert system.wait_idle(WAIT)
    assert events == ["started", "message"]


def test_a_reentrant_behaviour_that_is_told_to_stop_begins_nothing_more(
    held: tuple[AgentSystem, Faulty],
) -> None:
    system, model = held
    begun: list[str] = []

    class Thinks(AgentBehaviour):
        reentrant = True

        async def on_message(self, message: Any, sender: Agent | None) -> str:
            begun.append(message)
            await self.think([1], sampling=SHORT)
            return "thought"

    gate = threading.Event()
    model.arm(hold=gate)
    thinks = system.spawn("thinks", behaviour=Thinks())
    first = thinks.request("first")
    assert model.reached.wait(WAIT)
    system.parts.behaviours.stop("thinks")
    second = thinks.request("second")
    gate.set()

    assert first.get(timeout=WAIT) == "thought"
    with pytest.raises(Exception, match="no behaviour"):
        second.get(timeout=WAIT)
    assert begun == ["first"]


def test_whoever_watches_too_late_is_told_the_cause_too(system: AgentSystem) -> None:
    failure = ValueError("mine")
    echo = system.spawn("echo", behaviour=Echo())
    with pytest.raises(ValueError, match="mine"):
        echo.request(failure).get(timeout=WAIT)
    assert system.wait_idle(WAIT)

    assert system.watch("echo").get(timeout=WAIT).cause is failure
    assert system.watch("nobody").get(timeout=WAIT).cause is None
    system.spawn("echo", behaviour=Echo())
    system.parts.behaviours.stop("echo")
    assert system.watch("echo").get(timeout=WAIT).cause is None


def test_a_child_that_escalates_to_a_parent_that_has_stopped_leaves_nothing_behind(
    system: AgentSystem,
) -> None:
    gate, entered = threading.Event(), threading.Event()

    class Parent(AgentBehaviour):
        blocking = True

        def on_message(self, message: Any, sender: Agent | None) -> None:
            entered.set()
            gate.wait(WAIT)

    parent = system.spawn("parent", behaviour=Parent())
    child = system.spawn(
        "child", behaviour=Echo(), supervision=Supervision("escalate"), parent="parent"
    )
    parent.deliver("hold")
    assert entered.wait(WAIT)
    # The parent stops after its message, and the child's error comes behind that.
    system.parts.behaviours.stop("parent")
    with pytest.raises(ValueError, match="mine"):
        child.request(ValueError("mine")).get(timeout=WAIT)
    gate.set()

    assert system.wait_idle(WAIT)


def test_what_an_agent_said_while_it_was_stopped_does_not_wait_for_the_disk(
    open_system: OpenSystem,
) -> None:
    step, busy, entered = threading.Event(), threading.Event(), threading.Event()

    class Busy(AgentActor):
        def on_receive(self, message: Any) -> None:
            if isinstance(message, Prefetch):
                entered.set()
                busy.wait(WAIT)
            super().on_receive(message)

    model = Faulty(tiny_model(seed=3))
    system = open_system(
        lambda: (model, PlainTokenizer()),
        model_name="held",
        prepare=partial(use_actors, agent=Busy),
    )
    alice = system.spawn("alice")
    model.arm(hold=step)
    future = alice.ask([1] * 300, sampling=Sampling(max_tokens=2))
    assert model.reached.wait(WAIT)
    system.prefetch("alice")
    assert entered.wait(WAIT)
    actor = system.parts.agents.actor("alice")
    assert actor is not None
    stopped = actor.actor_ref.stop(block=False)
    step.set()
    while not system.stats()["backlog_bytes"]:
        pass  # The end of the turn comes behind the stop.
    busy.set()

    assert stopped.get(timeout=WAIT)
    with pytest.raises(SystemStopped):
        future.get(timeout=WAIT)
    system.forget("alice")
    assert system.wait_idle(WAIT)
    system.check()
    assert system.stats()["backlog_bytes"] == 0


def test_a_restart_fails_what_else_a_reentrant_behaviour_was_doing(
    held: tuple[AgentSystem, Faulty],
) -> None:
    system, model = held
    does = system.spawn("does", behaviour=DoesMuch(), supervision=Supervision("restart", backoff=0))
    gate = threading.Event()
    model.arm(hold=gate)

    async def think(me: AgentBehaviour) -> None:
        await me.think([1], sampling=SHORT)

    async def fail(_: AgentBehaviour) -> None:
        raise ValueError("mine")

    thinking = does.request(think)
    assert model.reached.wait(WAIT)
    with pytest.raises(ValueError, match="mine"):
        does.request(fail).get(timeout=WAIT)

    with pytest.raises(BehaviourFailed, match="restarted"):
        thinking.get(timeout=WAIT)
    gate.set()
    assert system.wait_idle(WAIT)


def test_text_for_a_behaviour_that_has_ended_is_undelivered_and_never_a_prompt(
    system: AgentSystem,
) -> None:
    echo, asks = system.spawn("echo", behaviour=Echo()), system.spawn("asks", behaviour=Does())
    system.spawn("model").request("hello").get(timeout=WAIT)  # It never had one: a turn.
    with pytest.raises(ValueError, match="mine"):
        echo.request(ValueError("mine")).get(timeout=WAIT)
    assert system.watch("echo").get(timeout=WAIT)

    async def ask(me: AgentBehaviour) -> Any:
        return await me.ask("echo", "from inside")

    with pytest.raises(Undelivered, match="the behaviour of 'echo' has ended"):
        echo.request("hello").get(timeout=WAIT)
    with pytest.raises(Undelivered, match="has ended"):
        asks.request(ask).get(timeout=WAIT)
    assert system.spawn("echo") is echo
    echo.deliver("too late").get(timeout=WAIT)
    assert system.wait_idle(WAIT)
    assert not echo.transcript().turns
    assert [letter.message for letter in system.dead_letters() if letter.receiver == "echo"] == [
        "hello",
        "from inside",
        "too late",
    ]

    # Its user may still ask it, and another behaviour, or another agent, begins anew.
    assert echo.ask([1], sampling=SHORT).get(timeout=WAIT).token_ids
    system.spawn("echo", behaviour=Echo())
    assert echo.request("again").get(timeout=WAIT) == "again"
    system.forget("echo")
    assert system.watch("echo").get(timeout=WAIT)
    assert system.spawn("echo").request("anew").get(timeout=WAIT).token_ids


def test_idle_is_who_has_ended_and_told_its_watchers(open_system: OpenSystem) -> None:
    system = open_system(store=False, deterministic=True)
    heard = list[Any]()

    class Watches(AgentBehaviour):
        def on_message(self, message: Any, sender: Agent | None) -> None:
            if message == "watch":
                self.watch("other")
            else:
                heard.append(message.agent_id)

    class Stops(AgentBehaviour):
        def on_message(self, message: Any, sender: Agent | None) -> None:
            self.stop("other")

    other = system.spawn("other", behaviour=Echo())
    system.spawn("watches", behaviour=Watches()).deliver("watch")
    assert system.wait_idle(WAIT)

    system.spawn("stops", behaviour=Stops()).deliver("go")
    assert system.wait_idle(WAIT)

    assert (heard, other.ended) == (["other"], True)
    system.spawn("other", behaviour=Echo())


@pytest.mark.parametrize("busy", [Does, DoesBlocking])
def test_who_is_forgotten_in_the_middle_of_a_message_takes_no_mail_of_its_successor(
    system: AgentSystem, busy: type[AgentBehaviour]
) -> None:
    gate, entered = threading.Event(), threading.Event()

    def hold() -> bool:
        entered.set()
        return gate.wait(WAIT)

    first = system.spawn("agent", behaviour=busy())
    system.spawn("child", behaviour=Echo(), parent="agent")
    old = first.request(lambda me: me.run_blocking(hold) if busy is Does else hold())
    assert entered.wait(WAIT)

    system.forget("agent")
    assert system.watch("agent").get(timeout=WAIT).cause is None
    assert system.watch("child").get(timeout=WAIT)
    second = system.spawn("agent", behaviour=Echo())
    assert second.request("new").get(timeout=WAIT) == "new"
    if busy is Does:
        # It may not have come to wait yet: where what it waits for is done by then, it goes on.
        with pytest.raises(SystemStopped, match="was stopped"):
            old.get(timeout=WAIT)
    gate.set()
    if busy is not Does:
        assert old.get(timeout=WAIT)
    assert system.wait_idle(WAIT)
    assert second.request("still there").get(timeout=WAIT) == "still there"
    system.check()


def test_a_behaviour_may_forget_its_own_agent(open_system: OpenSystem) -> None:
    system = open_system(store=False, deterministic=True)
    agent = system.spawn("agent", behaviour=Does())

    async def forgets(me: AgentBehaviour) -> None:
        await me.run_blocking(system.forget, "agent")

    agent.request(forgets).get(timeout=WAIT)

    assert system.wait_idle(WAIT)
    assert system.find("agent") is None
    assert system.spawn("agent", behaviour=Echo()).request("new").get(timeout=WAIT) == "new"
