"""What the persistence actor does between saves: ledgers are read, and work is watched."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
from makers import OpenSystem

from kvactors.actors import Sampling, SaveFailed
from kvactors.actors.testing import FailingFiles, use_actors
from kvactors.actors.turns.messages_store import ReadLedger, SaveTurn
from kvactors.actors.workers.persistence import PersistenceActor

SHORT = Sampling(max_tokens=6)
WAIT = 60


def test_a_ledger_is_read_with_the_turns_that_are_still_being_gathered(
    open_system: OpenSystem,
) -> None:
    read = list[Any]()

    class Reads(PersistenceActor):
        def on_receive(self, message: Any) -> Any:
            answer = super().on_receive(message)
            if isinstance(message, SaveTurn):
                read.append(super().on_receive(ReadLedger("alice")))
            return answer

    system = open_system(prepare=partial(use_actors, persistence=Reads))
    system.spawn("alice").ask([1, 2], sampling=SHORT).get(timeout=WAIT)
    system.stop(timeout=WAIT)

    assert [len(records) for records in read] == [1]


def test_who_cancels_an_export_that_is_watched_ends_that_alone(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    full = FailingFiles(name="append", path="*bob*")
    full.armed = False
    system = open_system(disk=full)
    ann, bob = (system.spawn(name) for name in ("ann", "bob"))
    for agent in (ann, bob):
        agent.ask([5, 6], sampling=SHORT).get(timeout=WAIT).durable.get(timeout=WAIT)
    full.armed = True
    with pytest.raises(SaveFailed):
        bob.ask([7], sampling=SHORT).get(timeout=WAIT).durable.get(timeout=WAIT)
    full.armed = False
    said = bob.transcript()

    def cancel(_done: int, _of: int) -> NoReturn:
        raise asyncio.CancelledError("the user has had enough")

    with pytest.raises(asyncio.CancelledError, match="had enough"):
        system.export_agent("ann", tmp_path / "ann.kvagent", on_step=cancel)

    assert ann.ask([7], sampling=SHORT).get(timeout=WAIT).durable.get(timeout=WAIT) is True
    system.stop(timeout=WAIT)
    assert open_system().spawn("bob").transcript() == said
