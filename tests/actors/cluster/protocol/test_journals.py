"""Journals of a directory and of a node are written anew, beside what is being noted just then."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from machine import SETTINGS, Machine

from kvactors.actors.cluster.machine.journal import FileJournal
from kvactors.actors.cluster.protocol.directory.registry import Registry
from kvactors.actors.cluster.protocol.errors import WrongRecord
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.node.notes import Notes
from kvactors.actors.cluster.protocol.records import Member


def claim_often(machine: Machine) -> None:
    """Most of the journal is of the past then."""
    for _ in range(150):
        machine.ask("claim", agent="alice", node="n1", incarnation=1)


def test_a_journal_of_the_past_is_written_anew(machine: Machine) -> None:
    machine.joins("n1")
    machine.spawns()
    claim_often(machine)
    before = machine.ask("agents", after="", count=10)
    long = len(machine.disk.files["journal"])

    machine.restart()
    rounds = machine.process.start(machine.directory.run())
    machine.does(machine.process.wait(0.1))
    rounds.cancel()
    machine.restart()

    assert machine.ask("agents", after="", count=10) == before
    assert len(machine.disk.files["journal"]) < 10 < long
    assert machine.ask("spawn", agent="bob", group=None, options={})["born"] == 1


def test_a_journal_is_written_anew_while_the_directory_runs(machine: Machine) -> None:
    machine.joins("n1")
    machine.spawns()
    rounds = machine.process.start(machine.directory.run())
    machine.does(machine.process.wait(0.1))
    claim_often(machine)

    machine.does(machine.process.wait(SETTINGS.lease / 3))
    rounds.cancel()

    assert len(machine.disk.files["journal"]) < 100


def test_a_journal_that_cannot_be_written_anew_stands(machine: Machine) -> None:
    machine.joins("n1")
    machine.spawns()
    claim_often(machine)
    before = machine.ask("agents", after="", count=10)
    machine.disk.full = True

    machine.does(machine.directory.registry.compact())

    assert machine.ask("agents", after="", count=10) == before


def test_what_is_noted_while_a_directorys_journal_is_written_anew_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    registry = Registry(FileJournal(path, "directory"))
    member = Member("n1", 1, "d")

    async def both() -> None:
        await asyncio.gather(registry.note(members=[member]), registry.rewrite())

    asyncio.run(both())

    assert Registry(FileJournal(path, "directory")).members == {"n1": member}


def test_what_is_noted_while_a_nodes_journal_is_written_anew_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    notes = Notes(FileJournal(path, "n1"))

    async def both() -> None:
        for _ in range(101):
            await notes.incarnate(0)
        await asyncio.gather(notes.promise("alice", 3), notes.incarnate(0), notes.compact())

    asyncio.run(both())

    again = Notes(FileJournal(path, "n1"))
    assert (again.promised("alice"), again.incarnation) == (3, 102)
    assert len(FileJournal(path, "n1").load()) == 3


@pytest.mark.parametrize(
    ("over", "change"),
    [
        (Registry, {"quotas": [["alice", 5]]}),
        (Registry, {"members": [Member("n1", 1, "d").to_record() | {"zone": "eu"}]}),
        (Notes, {"quotas": [["alice", 5]]}),
    ],
)
def test_what_a_newer_version_wrote_to_a_journal_is_refused_and_stays(
    tmp_path: Path, over: Callable[[FileJournal], object], change: Record
) -> None:
    path = tmp_path / "journal"
    asyncio.run(FileJournal(path, "n1").append(change))
    before = path.read_bytes()

    with pytest.raises(WrongRecord, match=r"newer kvactors .*(quotas|made it).* upgrade"):
        over(FileJournal(path, "n1"))

    assert path.read_bytes() == before


def test_a_disk_keeps_its_name(machine: Machine) -> None:
    notes = machine.notes
    machine.does(notes.incarnate(0))
    machine.restart()
    again = machine.notes
    machine.does(again.incarnate(0))

    assert (again.disk, again.incarnation) == (notes.disk, 2)
    assert notes.disk
