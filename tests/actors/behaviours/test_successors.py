"""A behaviour that runs on when its agent was forgotten and has another one; what goes over to the
one that follows it, and what does not; and journals that the one of a release before wrote."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from behaviours import GOES_ON, Does, DoesBlocking, Echo, Recorder

from kvactors.actors import (
    Agent,
    AgentBehaviour,
    AgentSystem,
    SystemStopped,
    Terminated,
    replay,
)

WAIT = 60


class Watches(Recorder):
    """Watches the agent "other" from its start; fails at an error."""

    def on_start(self) -> None:
        self.watch("other")

    def on_message(self, message: Any, sender: Agent | None) -> int:
        if isinstance(message, Exception):
            raise message
        return super().on_message(message, sender)


@pytest.mark.parametrize(
    "act",
    [
        lambda me: me.stop(),
        lambda me: me.subscribe("topic"),
        lambda me: me.unsubscribe("topic"),
        lambda me: me.watch("other"),
        lambda me: me.later(0, "late"),
        lambda me: me.every(1, "again"),
    ],
    ids=["stop", "subscribe", "unsubscribe", "watch", "later", "every"],
)
def test_who_was_forgotten_does_nothing_in_the_name_of_its_successor(
    system: AgentSystem, act: Callable[[AgentBehaviour], object]
) -> None:
    gone, entered = threading.Event(), threading.Event()

    def late(me: AgentBehaviour) -> object:
        entered.set()
        assert gone.wait(WAIT)
        return act(me)

    old = system.spawn("agent", behaviour=DoesBlocking()).request(late)
    assert entered.wait(WAIT)
    system.forget("agent")
    new = Recorder()
    system.spawn("agent", behaviour=new)
    gone.set()

    with pytest.raises(SystemStopped, match="has ended"):
        old.get(timeout=WAIT)
    assert system.wait_idle(WAIT)
    assert new.seen == []
    assert system.spawn("agent").request("new").get(timeout=WAIT) == 1


def test_who_was_forgotten_watches_nobody_in_the_name_of_its_successor(
    system: AgentSystem,
) -> None:
    system.spawn("other", behaviour=Echo())
    for name in ("agent", "nobody"):
        assert system.spawn(name, behaviour=Watches()).request("hello").get(timeout=WAIT) == 1
        system.forget(name)

    new = Recorder()
    system.spawn("agent", behaviour=new)
    system.forget("other")

    assert system.wait_idle(WAIT)
    assert (new.seen, system.dead_letters()) == ([], ())
    system.check()


def test_who_watches_anew_after_each_restart_is_told_once(system: AgentSystem) -> None:
    watches = Watches()
    other = system.spawn("other", behaviour=Echo())
    watcher = system.spawn("watcher", behaviour=watches, supervision=GOES_ON)
    for _ in range(3):
        with pytest.raises(ValueError, match="mine"):
            watcher.request(ValueError("mine")).get(timeout=WAIT)
    assert system.wait_idle(WAIT)

    system.forget(other.agent_id)

    assert system.wait_idle(WAIT)
    assert watches.seen == [(Terminated("other", None), None)]


def test_who_watches_one_that_has_ended_is_told_each_time_and_one_that_runs_once(
    system: AgentSystem,
) -> None:
    class WatchesTwice(Recorder):
        def on_message(self, message: Any, sender: Agent | None) -> int:
            if message != "watch":
                return super().on_message(message, sender)
            self.watch("other")
            self.watch("other")
            return 0

    watches = WatchesTwice()
    other = system.spawn("other", behaviour=Does())
    watcher = system.spawn("watcher", behaviour=watches)
    told = [(Terminated("other", None), None)]

    watcher.request("watch").get(timeout=WAIT)
    other.deliver(AgentBehaviour.stop)
    assert system.wait_idle(WAIT)
    assert watches.seen == told

    watcher.request("watch").get(timeout=WAIT)
    assert system.wait_idle(WAIT)
    assert watches.seen == 3 * told


def test_of_each_behaviour_that_has_ended_the_first_message_it_lost_is_warned_of(
    system: AgentSystem, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        agent = system.spawn("agent", behaviour=Does())
        agent.deliver(AgentBehaviour.stop)
        assert system.wait_idle(WAIT)
        for _ in range(2):
            agent.deliver("lost").get(timeout=WAIT)

    assert caplog.messages == 2 * ["dead letter to 'agent': the behaviour of 'agent' has ended"]


def test_a_journal_of_before_has_no_word_of_what_was_observed_or_taken_back(tmp_path: Path) -> None:
    turn = {"text": "yes", "token_ids": [1], "finish_reason": "stop", "scores": None}
    records = [
        {"kind": "message", "at": 0.0, "agent": "a", "sender": None, "message": "hi"},
        {"kind": "turn", "at": 0.1, "agent": "a", "number": 2, **turn},
    ]
    (tmp_path / "journal").write_bytes(b"".join(map(msgpack.packb, records)))
    thought = []

    class Observes(AgentBehaviour):
        async def on_message(self, message: Any, sender: Agent | None) -> None:
            await self.observe("a fact")
            thought.append((await self.think("x")).text)
            await self.rewind()

    again = replay(tmp_path / "journal", {"a": Observes()})

    assert (thought, again.differences) == (["yes"], ())
