"""Agents that leave memory and stay on disk: what ends first, who is told, and how they return."""

import gc
import os
import signal
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from makers import OpenSystem

from kvactors.actors import (
    Agent,
    AgentBehaviour,
    AgentSystem,
    InvalidConfig,
    InvalidInput,
    Sampling,
    SaveFailed,
    SystemStopped,
    TurnTimeout,
)
from kvactors.actors.runtime.dispatcher import offer
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.testing import FailingFiles, FaultyModel
from kvactors.actors.turns.messages_agent import Leave, Pause
from kvactors.actors.turns.ticket import Ticket
from kvactors.core.errors import BlockingCall

SHORT = Sampling(max_tokens=6)
WAIT = 60
LONG = [3, 1, 4, 1, 5, 9, 2, 6] * 40


def asked(agent: Agent, prompt: Any) -> Any:
    return agent.ask(prompt, sampling=SHORT).get(timeout=WAIT)


def answering(open_system: OpenSystem) -> tuple[AgentSystem, Agent, Any, threading.Event]:
    """A system, its agent alice in the middle of a turn, and the gate at which that stands."""
    model = FaultyModel()
    system = open_system(model)
    alice = system.spawn("alice")
    gate = model.hold()
    turn = alice.ask([1, 2], sampling=SHORT)
    assert model.reached.wait(WAIT)
    return system, alice, turn, gate


def test_an_agent_that_was_deactivated_comes_back_warm_and_says_what_it_would_have(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    system = open_system(store=tmp_path, reproducible=True)
    alice, twin = system.spawn("alice"), system.spawn("twin")
    for agent in (alice, twin):
        asked(agent, LONG)

    system.deactivate("alice")
    away = {known.agent_id: known.tier for known in system.known_agents()}
    found = system.find("alice")
    back = system.spawn("alice")
    reply = asked(back, [7, 8])

    assert away == {"alice": "warm", "twin": "hot"}
    assert found is None
    assert reply.cache == "warm"
    assert reply.token_ids == asked(twin, [7, 8]).token_ids
    assert back.transcript() == twin.transcript()


def test_what_runs_and_waits_ends_first_and_is_on_disk(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    model = FaultyModel()
    system = open_system(model, store=tmp_path)
    alice = system.spawn("alice")
    gate = model.hold()
    turns = [alice.ask([n, n], sampling=SHORT) for n in (1, 2, 3)]
    assert model.reached.wait(WAIT)

    leaving = threading.Thread(target=system.deactivate, args=("alice",))
    leaving.start()
    leaving.join(0.05)
    waited = leaving.is_alive()
    gate.set()
    leaving.join(WAIT)

    assert waited
    assert [turn.get(timeout=0).durable.get(timeout=0) for turn in turns] == [True] * 3
    assert len(system.spawn("alice").transcript().turns) == 6


def test_a_handle_of_before_says_that_its_agent_was_deactivated(open_system: OpenSystem) -> None:
    system = open_system()
    alice = system.spawn("alice")
    asked(alice, [1, 2])
    system.deactivate("alice")
    system.deactivate("alice")

    for use in (alice.ask, alice.stream, alice.tell):
        with pytest.raises(SystemStopped, match="'alice' was deactivated: spawn it again"):
            use([3])
    with pytest.raises(SystemStopped, match="was deactivated"):
        alice.rewind()
    asked(system.spawn("alice"), [3])


def test_an_agent_whose_turn_takes_too_long_stays(open_system: OpenSystem) -> None:
    system, alice, turn, gate = answering(open_system)

    with pytest.raises(TurnTimeout):
        system.deactivate("alice", timeout=0.05)
    gate.set()

    assert system.find("alice") is alice
    assert turn.get(timeout=WAIT).durable.get(timeout=WAIT)
    asked(alice, [3])


def test_who_presses_ctrl_c_leaves_the_agent_in_memory(open_system: OpenSystem) -> None:
    system, alice, turn, gate = answering(open_system)

    interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        system.deactivate("alice")
    gate.set()

    assert turn.get(timeout=WAIT).durable.get(timeout=WAIT)
    asked(alice, [3])
    assert system.wait_idle(WAIT)


def test_ctrl_c_in_the_moment_in_which_the_agent_leaves_does_not_leave_it_deaf(
    open_system: OpenSystem,
) -> None:
    system = open_system()
    alice = system.spawn("alice")
    ticket = Ticket.begin("alice", streamed=False)
    ticket.durable.on_done(lambda _: ticket.reject(KeyboardInterrupt()))

    offer(system.parts.agents.existing("alice", "").actor, Leave(ticket, Pause(ReplyFuture())))

    asked(alice, [3])
    assert isinstance(ticket.reply.error, KeyboardInterrupt)


def test_an_agent_that_is_given_a_behaviour_while_it_leaves_stays(open_system: OpenSystem) -> None:
    class Thinks(AgentBehaviour):
        async def on_message(self, message: Any, sender: Agent | None) -> str:
            return (await self.think(message, sampling=SHORT)).finish_reason

    system, _, _, gate = answering(open_system)
    refused = list[BaseException]()

    def leave() -> None:
        with pytest.raises(InvalidInput, match="has a behaviour") as caught:
            system.deactivate("alice")
        refused.append(caught.value)

    leaving = threading.Thread(target=leave)
    leaving.start()
    leaving.join(0.05)
    thinks = system.spawn("alice", behaviour=Thinks())
    gate.set()
    leaving.join(WAIT)

    assert refused
    assert thinks.request([5]).get(timeout=WAIT) == "length"
    assert system.find("alice") is not None


def test_a_behaviour_that_is_made_while_its_agent_leaves_is_refused(
    open_system: OpenSystem,
) -> None:
    class Silent(AgentBehaviour):
        def on_message(self, message: object, sender: Agent | None) -> None:
            pass

    def made() -> AgentBehaviour:
        leaving.start()
        leaving.join(WAIT)
        return Silent()

    system = open_system()
    asked(system.spawn("alice"), [1, 2])
    leaving = threading.Thread(target=system.deactivate, args=("alice",))

    with pytest.raises(SystemStopped, match="was deactivated: spawn it again"):
        system.spawn("alice", behaviour=made)

    assert system.find("alice") is None
    asked(system.spawn("alice"), [3])
    assert system.wait_idle(WAIT)


def test_an_agent_whose_turns_the_disk_refuses_stays_and_goes_on(open_system: OpenSystem) -> None:
    disk = FailingFiles(name="append", path="*ledger.log")
    disk.armed = False
    system = open_system(disk=disk)
    alice = system.spawn("alice")
    asked(alice, [1, 2]).durable.get(timeout=WAIT)
    disk.armed = True
    asked(alice, [3])

    with pytest.raises(SaveFailed):
        system.deactivate("alice")
    asked(alice, [4])
    disk.armed = False
    system.deactivate("alice")

    assert len(system.spawn("alice").transcript().turns) == 6


def test_an_agent_without_a_store_or_with_a_behaviour_is_not_deactivated(
    open_system: OpenSystem,
) -> None:
    class Silent(AgentBehaviour):
        def on_message(self, message: object, sender: Agent | None) -> None:
            pass

    nowhere, system = open_system(store=False), open_system()
    nowhere.spawn("alice")
    system.spawn("bob", behaviour=Silent())

    with pytest.raises(InvalidConfig, match="store=False"):
        nowhere.deactivate("alice")
    with pytest.raises(InvalidInput, match="behaviour"):
        system.deactivate("bob")
    with pytest.raises(InvalidInput):
        system.deactivate("bob", timeout=0)


def test_an_actor_may_not_wait_for_an_agent_to_leave(open_system: OpenSystem) -> None:
    system = open_system()
    system.spawn("bob")

    class Tries(AgentBehaviour):
        def on_message(self, message: object, sender: Agent | None) -> None:
            system.deactivate("bob")

    with pytest.raises(BlockingCall):
        system.spawn("alice", behaviour=Tries()).request("now").get(timeout=WAIT)


def test_an_agent_that_left_is_not_kept_until_the_time_limit_of_a_turn(
    open_system: OpenSystem,
) -> None:
    system = open_system()

    def left() -> weakref.ref[Any]:
        alice = system.spawn("alice")
        actor = weakref.ref(system.parts.agents.actor("alice"))
        alice.ask([1, 2], sampling=SHORT, timeout=600).get(timeout=WAIT)
        system.deactivate("alice")
        return actor

    actor = left()
    # A thread lets go of what it handled last.
    asked(system.spawn("bob"), [1])
    gc.collect()

    assert actor() is None


@pytest.mark.slow
def test_a_hundred_agents_that_come_and_go_leave_nothing(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    system = open_system(store=tmp_path)
    handles = []
    for n in range(100):
        agent = system.spawn(f"agent {n % 10}")
        asked(agent, [n % 100, 5])
        handles.append(weakref.ref(agent))
        del agent
        system.deactivate(f"agent {n % 10}")
    gc.collect()

    stats = system.stats()

    system.check()
    assert (stats["agents"], stats["hot_agents"], stats["hot_bytes"]) == (0, 0, 0)
    assert [handle() for handle in handles] == [None] * 100
    assert len(system.spawn("agent 3").transcript().turns) == 20
