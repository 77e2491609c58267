"""Agents of whom the disk has refused turns, and who are forgotten."""

from pathlib import Path

import pytest
from makers import OpenSystem

from kvactors.actors import Agent, Sampling, SaveFailed, TranscriptView
from kvactors.actors.testing import FailingFiles, VirtualTimer
from kvactors.actors.workers.unwritten import LONGEST_PAUSE

SHORT = Sampling(max_tokens=6)
WAIT = 60


def refused(agent: Agent, disk: FailingFiles) -> TranscriptView:
    """What `agent` has said in a turn that is stored and in another one that `disk` refuses."""
    disk.armed = False
    agent.ask([1, 2], sampling=SHORT).get(timeout=WAIT).durable.get(timeout=WAIT)
    disk.armed = True
    lost = agent.ask([3], sampling=SHORT).get(timeout=WAIT)
    with pytest.raises(SaveFailed):
        lost.durable.get(timeout=WAIT)
    return agent.transcript()


def test_a_forgotten_agent_leaves_nothing_that_waits_for_the_disk(
    open_system: OpenSystem, caplog: pytest.LogCaptureFixture
) -> None:
    full, timer = FailingFiles(name="append", path="*ledger.log"), VirtualTimer()
    system = open_system(disk=full, timer=timer)
    refused(system.spawn("alice"), full)
    assert system.health().storage == "failing"

    system.forget("alice")

    health = system.health()
    assert (health.storage, health.storage_error, health.unsaved_bytes) == ("ok", "", 0)
    timer.let_pass(LONGEST_PAUSE)
    system.stats()  # after what the timer has sent
    assert "the disk writes again" not in caplog.text


def test_an_agent_that_the_disk_does_not_forget_still_has_the_turns_that_it_refused(
    open_system: OpenSystem,
) -> None:
    full = FailingFiles(name="*", path="*ledger.log")
    system = open_system(disk=full, timer=VirtualTimer())
    transcript = refused(system.spawn("alice"), full)

    with pytest.raises(SaveFailed, match="No space left"):
        system.forget("alice")
    with pytest.raises(SaveFailed, match="refused turns of 'alice'"):
        system.spawn("alice")
    full.armed = False

    assert system.spawn("alice").transcript() == transcript


def test_of_an_agent_whose_ledger_is_gone_no_turn_that_the_disk_refused_comes_back(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    full, timer = FailingFiles(name="append", path="*ledger.log"), VirtualTimer()
    late = FailingFiles(full, name="sync_dir", path="*/agents/alice-*")
    late.armed = False
    system = open_system(disk=late, timer=timer)
    refused(system.spawn("alice"), full)

    late.armed = True
    with pytest.raises(SaveFailed, match="No space left"):
        system.forget("alice")
    full.armed = late.armed = False
    timer.let_pass(LONGEST_PAUSE)

    assert not system.spawn("alice").transcript().token_ids
    assert not list(tmp_path.rglob("ledger.log"))
