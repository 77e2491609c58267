"""Behaviours whose end, journal or mailbox fails them: nobody waits for ever."""

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from behaviours import Does, DoesAtOnce, Echo
from makers import OpenSystem

from kvactors.actors import (
    Agent,
    AgentBehaviour,
    AgentSystem,
    LanePolicy,
    Sampling,
    Supervision,
)
from kvactors.actors.runtime.deterministic import VirtualTimer
from kvactors.actors.runtime.supervision import Restarts
from kvactors.actors.testing import FaultyModel
from kvactors.core.errors import BehaviourFailed, BlockingCall, InvalidConfig, MailboxFull
from kvactors.core.testing.models import Faulty

SHORT = Sampling(max_tokens=4)
WAIT = 60


class SendsToItself(AgentBehaviour):
    """Two messages, of which the second has no room until this one is done."""

    async def on_message(self, message: Any, sender: Agent) -> str:
        if message != "go":
            return "heard"
        await self.send(self.agent.agent_id, "one")
        await self.send(self.agent.agent_id, "two")
        return "sent"


def test_who_waits_for_room_in_its_own_lane_is_told_that_there_is_none(
    system: AgentSystem,
) -> None:
    lane = LanePolicy(1, "block", timeout=0.05)
    again = Supervision("restart", backoff=0)
    talks = system.spawn("talks", behaviour=SendsToItself(), prompt_lane=lane, supervision=again)

    with pytest.raises(MailboxFull):
        talks.request("go").get(timeout=WAIT)

    # The timer still runs, and the mailbox still takes something.
    assert talks.request("again", timeout=WAIT).get(timeout=WAIT) == "heard"
    assert system.wait_idle(WAIT)


class RaisesAtTheEnd(AgentBehaviour):
    """A message that waits in vain, and cannot be ended; another that fails."""

    reentrant = True

    def __init__(self, waits: threading.Event) -> None:
        self.waits = waits

    async def on_message(self, message: Any, sender: Agent) -> Any:
        if message == "fail":
            raise ValueError("mine")
        if message == "wait":
            try:
                self.waits.set()
                await self.think([1, 2, 3], sampling=SHORT)
            finally:
                raise KeyError("while it was ended")
        return message


def test_a_behaviour_goes_on_whose_other_message_raises_while_it_is_ended(
    held: tuple[AgentSystem, Faulty],
) -> None:
    system, model = held
    waits, goes_on = threading.Event(), threading.Event()
    policy = Supervision("restart", backoff=0)
    agent = system.spawn("odd", behaviour=RaisesAtTheEnd(waits), supervision=policy)
    model.arm(hold=goes_on)
    waiting = agent.request("wait")
    assert waits.wait(WAIT)
    with pytest.raises(ValueError, match="mine"):
        agent.request("fail").get(timeout=WAIT)
    goes_on.set()

    with pytest.raises(BehaviourFailed):
        waiting.get(timeout=WAIT)
    assert agent.request("well?").get(timeout=WAIT) == "well?"
    assert system.wait_idle(WAIT)


@pytest.mark.parametrize("message", ["caf\udcc3", [[]]])
def test_a_message_that_no_journal_takes_is_refused_and_nobody_waits(
    open_system: OpenSystem, tmp_path: Path, message: Any
) -> None:
    for _ in range(2000 if message == [[]] else 0):
        message = [message]
    system = open_system(store=False, journal=tmp_path / "journal")
    agent = system.spawn("echo", behaviour=Echo())

    with pytest.raises(Exception, match=r"surrogate|recursion|[Nn]est"):
        agent.request(message).get(timeout=WAIT)

    assert agent.request("well?").get(timeout=WAIT) == "well?"
    assert system.wait_idle(WAIT)


def test_restarts_are_counted_as_far_as_they_go() -> None:
    restarts = Restarts(Supervision("restart", backoff=0.01, most=10**6, window=1e9))

    waits = [restarts.next(float(now)) for now in range(1200)]

    assert waits[0] == 0.01
    assert waits[-1] == Supervision().longest_backoff


class Ticks(AgentBehaviour):
    """Counts the ticks that it is sent since it began."""

    def __init__(self, told: list[str]) -> None:
        self.told = told

    def on_start(self) -> None:
        self.every(1, "tick")

    def on_message(self, message: Any, sender: Agent) -> None:
        if message == "fail":
            raise ValueError("mine")
        self.told.append(message)


def test_what_repeats_is_begun_anew_with_the_behaviour(open_system: OpenSystem) -> None:
    timer, told = VirtualTimer(), list[str]()
    system = open_system(store=False, timer=timer)
    policy = Supervision("restart", backoff=0)
    agent = system.spawn("clock", behaviour=lambda: Ticks(told), supervision=policy)
    with pytest.raises(ValueError, match="mine"):
        agent.request("fail").get(timeout=WAIT)
    timer.let_pass(0)
    assert system.wait_idle(WAIT)

    for _ in range(5):
        timer.let_pass(1)
        assert system.wait_idle(WAIT)

    assert told == ["tick"] * 5


@pytest.mark.parametrize("store", [False, True])
def test_a_behaviour_spawns_and_forks_in_deterministic_mode(
    open_system: OpenSystem, tmp_path: Path, store: bool
) -> None:
    async def spawns(me: AgentBehaviour) -> list[str]:
        child = await me.spawn("child", behaviour=Echo())
        twin = await me.spawn("twin", from_=me.agent)
        return [child.agent_id, twin.agent_id, await me.ask("child", "hello")]

    where = tmp_path / "kept" if store else False
    system = open_system(store=where, deterministic=True, seed=3)
    agent = system.spawn("parent", behaviour=Does())
    agent.ask([1, 2, 3], sampling=SHORT).get(timeout=WAIT)

    assert agent.request(spawns).get(timeout=WAIT) == ["child", "twin", "hello"]
    assert [known.agent_id for known in system.known_agents()] == ["child", "parent", "twin"]


ACTS: dict[str, Callable[[AgentSystem], object]] = {
    "fork": lambda system: system.spawn("kid", from_="victim"),
    "forget": lambda system: system.forget("victim"),
    "export": lambda system: system.export_agent("victim", "exported"),
    "import": lambda system: system.import_agent("exported", "kid"),
}


@pytest.mark.parametrize("act", ACTS)
def test_what_may_not_block_does_nothing(
    open_system: OpenSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    monkeypatch.chdir(tmp_path)
    system = open_system(store=tmp_path / "kept")
    victim = system.spawn("victim")
    victim.ask([1, 2, 3], sampling=SHORT).get(timeout=WAIT)
    if act == "import":
        system.export_agent("victim", "exported")
    there = sorted(path.name for path in tmp_path.iterdir())

    def tries(_: AgentBehaviour) -> str:
        try:
            ACTS[act](system)
        except BlockingCall:
            return "refused"
        return "done"

    agent = system.spawn("tries", behaviour=DoesAtOnce())

    assert agent.request(tries).get(timeout=WAIT) == "refused"
    assert system.wait_idle(WAIT)
    assert [known.agent_id for known in system.known_agents()] == ["tries", "victim"]
    assert sorted(path.name for path in tmp_path.iterdir()) == there
    assert victim.ask([4], sampling=SHORT).get(timeout=WAIT).cache == "hot"


def test_a_fork_whose_behaviour_is_refused_is_not_made(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    system = open_system(store=tmp_path / "kept")
    taken = Echo()
    system.spawn("parent", behaviour=taken).ask([1, 2], sampling=SHORT).get(timeout=WAIT)

    with pytest.raises(InvalidConfig):
        system.spawn("child", from_="parent", behaviour=taken)

    assert [known.agent_id for known in system.known_agents()] == ["parent"]
    system.spawn("child", from_="parent", behaviour=Echo())


def test_what_is_waited_for_as_long_as_it_takes_is_waited_for(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    system = open_system(store=tmp_path / "kept")
    assert system.spawn("a").ask([1], sampling=SHORT).get(timeout=math.inf).token_ids
    system.stop(timeout=math.inf)

    again = open_system(store=tmp_path / "kept")
    assert [known.agent_id for known in again.known_agents()] == ["a"]


class FailsLate(AgentBehaviour):
    """Takes a turn, says so, and fails once it is let."""

    def __init__(self, thought: threading.Event, let: threading.Event) -> None:
        self.thought, self.let = thought, let

    async def on_message(self, message: Any, sender: Agent | None) -> None:
        await self.think([7, 7], sampling=SHORT)
        self.thought.set()
        await self.run_blocking(lambda: self.let.wait(WAIT))
        raise ValueError("late")


@pytest.mark.parametrize(("capacity", "waiting"), [(1000, 0), (1, 1)])
def test_a_restart_takes_back_nothing_that_others_are_just_being_answered(
    open_system: OpenSystem, capacity: int, waiting: int
) -> None:
    model, thought, let = FaultyModel(), threading.Event(), threading.Event()
    system = open_system(model)
    agent = system.spawn(
        "a",
        prompt_lane=LanePolicy(capacity, "refuse"),
        behaviour=lambda: FailsLate(thought, let),
        supervision=Supervision("rewind", backoff=0),
    )
    fails = agent.request("go")
    assert thought.wait(WAIT)
    gate = model.hold()
    others = [agent.ask([9, 9, 9], sampling=SHORT)]
    assert model.reached.wait(WAIT)
    others += [agent.ask([8, 8], sampling=SHORT) for _ in range(waiting)]

    let.set()
    with pytest.raises(ValueError, match="late"):
        fails.get(timeout=WAIT)
    gate.set()

    assert all(other.get(timeout=WAIT).token_ids for other in others)
    assert system.wait_idle(WAIT)
    assert len(agent.transcript().turns) == 2 * (2 + waiting)
    # It was begun anew, whatever stays.
    with pytest.raises(ValueError, match="late"):
        agent.request("go").get(timeout=WAIT)
