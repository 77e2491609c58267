"""Agents that come with a store, before a directory that does not know them."""

import asyncio
from typing import Any

import pytest
from machine import SETTINGS, Machine

from kvactors.actors.cluster.protocol.errors import AgentExists, AgentUnsure, UnknownAgent
from kvactors.actors.cluster.protocol.interfaces import Record

NOBODY: dict[str, Any] = {"agent": "bob", "group": None, "options": {}}


def has(epoch: int, records: int, spawned: Record | None = None) -> Record:
    return {"epoch": epoch, "records": records, "spawned": spawned}


def finds(machine: Machine, node: str, *, last: bool = True, **agents: tuple[int, int]) -> None:
    """The node says what it has: of each the epoch that was promised, and records."""
    found = {agent: has(*said) for agent, said in agents.items()}
    machine.ask("found", node=node, incarnation=1, agents=found, all=last)


def place(machine: Machine, agent: str = "alice") -> Record:
    return machine.ask("find", agent=agent)


def test_an_agent_lives_where_there_is_most_of_it_and_has_something_to_copy(
    machine: Machine,
) -> None:
    machine.joins("n1", "n2", "n3", told=False)
    finds(machine, "n1", alice=(0, 3))
    finds(machine, "n2", alice=(0, 5))
    with pytest.raises(AgentUnsure, match="n3 may have 'alice'"):
        place(machine)

    machine.ask("told", node="n3", incarnation=1)

    found = place(machine)
    assert (found["node"], found["replica"], found["incarnation"]) == ("n2", None, 0)
    # A new one's first epoch has no records, and no replica is made in it.
    assert (found["epoch"], found["born"]) == (2, 1)
    assert machine.ask("claim", agent="alice", node="n2", incarnation=1)["epoch"] == 3


def test_nobody_is_begun_before_all_have_said_what_they_have(machine: Machine) -> None:
    machine.joins("n1")
    machine.joins("n2", told=False)
    for name in ("alice", "bob"):
        with pytest.raises(AgentUnsure, match=f"n2 may have '{name}'"):
            machine.ask("spawn", **{**NOBODY, "agent": name})
    finds(machine, "n2", last=False, alice=(0, 1))
    with pytest.raises(AgentUnsure):
        machine.ask("spawn", **NOBODY)

    finds(machine, "n2", carol=(0, 1))

    assert [place(machine, name)["node"] for name in ("alice", "carol")] == ["n2", "n2"]
    assert machine.ask("spawn", **NOBODY)["born"] == 1


def test_a_restarted_directory_still_waits_for_who_has_not_said_it(machine: Machine) -> None:
    machine.joins("n1", told=False)
    machine.ask("found", node="n1", incarnation=1, agents={}, all=True)
    machine.restart()
    with pytest.raises(AgentUnsure):
        machine.ask("spawn", **NOBODY)

    machine.ask("told", node="n1", incarnation=1)
    machine.restart()

    machine.ask("spawn", **NOBODY)


def test_the_journal_that_is_written_anew_has_who_is_waited_for(machine: Machine) -> None:
    machine.joins("n1")
    machine.joins("n2", told=False)
    for _ in range(150):
        machine.ask("drain", node="n1", on=False)
    rounds = machine.process.start(machine.directory.run())
    machine.does(machine.process.wait(0.1))
    rounds.cancel()
    assert len(machine.disk.files["journal"]) < 10
    machine.restart()

    with pytest.raises(AgentUnsure, match="n2 may have 'bob'"):
        machine.ask("spawn", **NOBODY)


def test_who_is_lost_is_not_waited_for_when_it_is_drained(machine: Machine) -> None:
    machine.joins("n1")
    machine.joins("n2", told=False)
    with pytest.raises(AgentUnsure, match="drain those that are lost"):
        machine.ask("spawn", **NOBODY)

    machine.ask("drain", node="n2", on=True)

    machine.ask("spawn", **NOBODY)


def test_who_was_forgotten_or_lives_elsewhere_does_not_come_back_with_a_store(
    machine: Machine,
) -> None:
    machine.joins("n1", "n2")
    machine.spawns()
    before = place(machine)
    machine.ask("spawn", **NOBODY)
    machine.does(machine.directory.registry.note(gone=["bob"]))

    # They were not known yet when it asked.
    finds(machine, "n2", alice=(9, 9), bob=(9, 9))

    assert place(machine) == before
    with pytest.raises(UnknownAgent):
        place(machine, "bob")
    assert machine.ask("whose", agents=["bob"])["bob"]["node"] is None


def test_a_place_that_is_being_written_when_a_store_is_told_of_stays(machine: Machine) -> None:
    machine.joins("n1", "n2")

    async def both() -> list[Any]:
        handle = machine.directory.handle
        found = {"alice": has(0, 9)}
        says = {"node": "n2", "incarnation": 1, "agents": found, "all": True}
        spawn = asyncio.ensure_future(handle("spawn", {**NOBODY, "agent": "alice"}))
        await asyncio.sleep(0)
        return list(await asyncio.gather(spawn, handle("found", says)))

    spawned, _ = machine.does(both())

    assert place(machine) == spawned


def test_what_another_directory_promised_waits_for_the_leases_of_that_one(
    machine: Machine,
) -> None:
    machine.joins("n1", "n2", told=False)
    machine.ask("told", node="n2", incarnation=1)
    finds(machine, "n1", alice=(8, 3), bob=(0, 3))
    assert place(machine, "bob")["node"] == "n1"
    with pytest.raises(AgentUnsure):
        place(machine)

    machine.does(machine.process.wait(1.1 * SETTINGS.lease))
    finds(machine, "n1", alice=(8, 3))

    found = place(machine)
    assert (found["epoch"], found["born"]) == (9, 1)


def test_the_first_who_says_how_an_adopted_agent_is_spawned_is_believed(machine: Machine) -> None:
    machine.joins("n1", told=False)
    finds(machine, "n1", alice=(0, 2))
    asked = {"agent": "alice", "group": "market", "options": {"behaviour": "trading:Trader"}}
    adopted = machine.ask("spawn", agent="alice", group=None, options={})

    spawned = machine.ask("spawn", **asked)

    assert (spawned["node"], spawned["options"]) == ("n1", asked["options"])
    assert spawned["epoch"] == adopted["epoch"] + 1
    assert machine.ask("spawn", **asked) == spawned
    with pytest.raises(AgentExists):
        machine.ask("spawn", **{**asked, "group": "other"})


def test_how_a_restored_agent_was_spawned_is_known_where_its_backup_says_so(
    machine: Machine,
) -> None:
    machine.joins("n1", told=False)
    spawned = {"group": "market", "options": {"behaviour": "trading:Trader"}}
    found = {"alice": has(0, 2, spawned)}

    machine.ask("found", node="n1", incarnation=1, agents=found, all=True)

    assert {key: place(machine)[key] for key in spawned} == spawned
    assert machine.ask("spawn", agent="alice", **spawned)["node"] == "n1"
    with pytest.raises(AgentExists):
        machine.ask("spawn", agent="alice", group=None, options={})


def test_a_copy_that_another_directory_promised_more_outlives_nobody(machine: Machine) -> None:
    machine.joins("n1")
    machine.spawns()
    machine.ask("spawn", **NOBODY)
    machine.does(machine.directory.registry.note(gone=["bob"]))
    gone = machine.ask("whose", agents=["bob"])["bob"]["epoch"]

    # What a node stores of an epoch that it was promised is no orphan before that is over.
    machine.ask("outdate", agent="bob", epoch=gone, promised=9)
    machine.ask("outdate", agent="alice", epoch=1, promised=9)
    machine.restart()

    assert machine.ask("whose", agents=["bob"])["bob"]["epoch"] == 10
    assert place(machine)["epoch"] == 10
    assert machine.ask("spawn", **NOBODY)["born"] == 10
