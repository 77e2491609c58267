"""A behaviour that runs on when its agent was forgotten and has another one; and journals that the
one of a release before wrote."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from behaviours import DoesBlocking, Recorder

from kvactors.actors import Agent, AgentBehaviour, AgentSystem, SystemStopped, replay

WAIT = 60


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
