"""Parts of the protocol by themselves, where a whole cluster would meet the case too seldom."""

import asyncio

import pytest
from machine import SETTINGS, Answering, Machine, record

from kvactors.actors.cluster.protocol.directory.registry import next_epoch
from kvactors.actors.cluster.protocol.directory.server import Directory
from kvactors.actors.cluster.protocol.errors import (
    AgentExists,
    AgentUnavailable,
    Fenced,
    LeaseLost,
    LedgerGap,
    NotOwner,
    OtherDisk,
    StaleEpoch,
    UnknownAgent,
    Unreachable,
)
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.node.lease import Lease
from kvactors.actors.cluster.testing.machines.host import texts

A, B, C, D = map(record, "abcd")


def test_a_tail_that_the_owner_never_had_is_set_aside(machine: Machine) -> None:
    machine.align(1, [])
    machine.replicate(1, 0, A, B, C)

    assert machine.align(2, [A, D]) == 1
    assert machine.replicate(2, 1, D) == 2

    assert machine.ledger() == ["a", "d"]
    assert texts(machine.disk.files["aside"]) == ["b", "c"]


@pytest.mark.parametrize("restarted", [False, True])
def test_an_alignment_that_comes_late_takes_nothing_away(machine: Machine, restarted: bool) -> None:
    machine.align(1, [A])
    machine.replicate(1, 0, A, B)
    if restarted:
        machine.restart()

    machine.align(1, [A])

    assert machine.ledger() == ["a", "b"]


def test_a_lower_epoch_is_refused_for_ever(machine: Machine) -> None:
    machine.align(3, [])
    machine.restart()

    with pytest.raises(StaleEpoch, match="epoch 2 of 'alice' is over: 3 has begun"):
        machine.align(2, [])
    with pytest.raises(StaleEpoch):
        machine.replicate(2, 0, A)


def test_records_are_taken_only_from_who_has_aligned(machine: Machine) -> None:
    machine.align(1, [])
    machine.restart()

    with pytest.raises(LedgerGap):
        machine.replicate(1, 0, A)


def test_a_lease_counts_from_before_the_renewal_and_ends_early(machine: Machine) -> None:
    lease = Lease("n1", 1, machine.clock, SETTINGS)
    with pytest.raises(LeaseLost):
        lease.check()

    sent = machine.clock.now()
    machine.does(machine.process.wait(1.0))
    lease.renewed(sent)
    machine.does(machine.process.wait(0.97))
    lease.check()
    machine.does(machine.process.wait(0.02))

    with pytest.raises(LeaseLost, match="n1 holds no lease"):
        lease.check()


def test_a_silent_node_is_fenced_and_that_is_not_forgotten(machine: Machine) -> None:
    machine.joins("n1")
    machine.all_fall_silent()
    machine.restart()

    with pytest.raises(Fenced, match="incarnation 1 of n1 is over"):
        machine.ask("renew", node="n1", incarnation=1, load={"bytes": 0, "waiting": 0})


def test_a_restarted_directory_waits_a_whole_lease(machine: Machine) -> None:
    machine.joins("n1")
    machine.does(machine.process.wait(10 * SETTINGS.lease))
    machine.restart()
    rounds = machine.process.start(machine.directory.run())
    machine.does(machine.process.wait(0.9 * SETTINGS.lease))

    machine.ask("renew", node="n1", incarnation=1, load={"bytes": 0, "waiting": 0})
    rounds.cancel()


def test_the_replica_takes_over_in_a_new_epoch(machine: Machine) -> None:
    machine.joins("n1", "n2")
    owner = machine.spawns()["node"]
    other = "n2" if owner == "n1" else "n1"
    epoch = machine.ask("claim", agent="alice", node=owner, incarnation=1)["epoch"]
    named = machine.ask(
        "name", agent="alice", node=owner, incarnation=1, epoch=epoch, replica=other
    )

    machine.all_fall_silent(but=other)
    taken = machine.ask("find", agent="alice")

    assert (taken["node"], taken["replica"]) == (other, None)
    assert taken["epoch"] > named["epoch"]


def test_an_agent_with_no_replica_waits_for_its_node(machine: Machine) -> None:
    machine.joins("n1")
    machine.spawns()
    machine.ask("claim", agent="alice", node="n1", incarnation=1)
    machine.joins("n2")
    machine.all_fall_silent(but="n2")

    with pytest.raises(AgentUnavailable, match="'alice' is stored on n1"):
        machine.ask("find", agent="alice")
    machine.ask("join", node="n1", incarnation=2, disk="d")

    assert machine.ask("find", agent="alice")["node"] == "n1"


def test_a_replica_is_named_only_in_the_epoch_it_was_synced_in(machine: Machine) -> None:
    machine.joins("n1", "n2")
    owner = machine.spawns()["node"]
    epoch = machine.ask("claim", agent="alice", node=owner, incarnation=1)["epoch"]
    asked = {"agent": "alice", "node": owner, "incarnation": 1, "epoch": epoch}
    machine.ask("name", **asked, replica="n2")

    with pytest.raises(StaleEpoch):
        machine.ask("name", **asked, replica="n1")


def test_only_the_owner_claims_and_only_its_last_incarnation(machine: Machine) -> None:
    machine.joins("n1", "n2")
    owner = machine.spawns()["node"]
    other = "n2" if owner == "n1" else "n1"

    with pytest.raises(NotOwner):
        machine.ask("claim", agent="alice", node=other, incarnation=1)
    machine.ask("join", node=owner, incarnation=2, disk="d")
    with pytest.raises(Fenced):
        machine.ask("claim", agent="alice", node=owner, incarnation=1)


def test_an_older_incarnation_that_joins_late_changes_nothing(machine: Machine) -> None:
    machine.joins("n1")
    machine.ask("join", node="n1", incarnation=2, disk="d")

    with pytest.raises(Fenced):
        machine.ask("join", node="n1", incarnation=1, disk="d")
    machine.ask("renew", node="n1", incarnation=2, load={"bytes": 0, "waiting": 0})


def test_a_node_that_has_lost_its_disk_is_not_taken_for_who_it_was(machine: Machine) -> None:
    machine.ask("join", node="n1", incarnation=1, disk="d")

    with pytest.raises(OtherDisk, match="'n1' has joined with another disk"):
        machine.ask("join", node="n1", incarnation=7, disk="e")
    machine.restart()
    with pytest.raises(OtherDisk):
        machine.ask("join", node="n1", incarnation=1, disk="e")
    machine.ask("join", node="n1", incarnation=2, disk="d")


@pytest.mark.parametrize("leaving", [True, False])
def test_a_node_that_was_leaving_takes_agents_when_it_is_back_and_one_that_was_drained_does_not(
    machine: Machine, leaving: bool
) -> None:
    machine.joins("n1")
    machine.ask("drain", node="n1", on=True, leaving=leaving)
    for on in [] if leaving else [True, False]:
        machine.ask("drain", node="n1", on=on, leaving=True)
    machine.restart()
    assert machine.ask("stats")["nodes"]["n1"]["draining"]

    machine.ask("join", node="n1", incarnation=2, disk="d")

    assert machine.ask("stats")["nodes"]["n1"]["draining"] is not leaving


def test_a_spawn_that_is_sent_again_is_the_same_and_another_is_refused(machine: Machine) -> None:
    machine.joins("n1", "n2")

    assert machine.spawns() == machine.spawns()
    with pytest.raises(AgentExists):
        machine.ask("spawn", agent="alice", group=None, options={"system_prompt": "other"})
    with pytest.raises(UnknownAgent, match="there is no agent 'bob'"):
        machine.ask("find", agent="bob")


def test_a_move_is_not_forgotten(machine: Machine) -> None:
    machine.joins("n1", "n2")
    machine.spawns()
    machine.ask("move", agent="alice", target="n2")

    machine.restart()

    assert not machine.ask("moved", agent="alice")["over"]


def test_an_agent_that_is_forgotten_while_it_waits_for_its_move_stops_nobody(
    machine: Machine,
) -> None:
    machine.joins("n1")
    agents = [f"a{index}" for index in range(2 * SETTINGS.moves)]
    for agent in agents:
        machine.ask("spawn", agent=agent, group=None, options={})
    machine.joins("n2")
    for agent in agents:
        machine.ask("move", agent=agent, target="n2")

    rounds = machine.process.start(machine.directory.run())
    machine.does(machine.process.wait(0.01))
    machine.does(machine.directory.registry.note(gone=agents[-1:]))
    machine.does(machine.process.wait(SETTINGS.lease / 2))

    assert not rounds.done()
    rounds.cancel()


def test_a_move_does_not_undo_a_take_over_that_came_first(machine: Machine) -> None:
    machine.joins("n1")
    machine.spawns()
    machine.joins("n2", "n3")
    registry = machine.directory.registry

    class TakenOver(Answering):
        async def answer(self, method: str, asked: Record) -> Record:
            place = registry.places["alice"]
            if method == "release" and place.node == "n1":
                await registry.note(places=[next_epoch(place, node="n3", incarnation=0)])
            return {}

    moves = Directory(TakenOver(), machine.clock, machine.journal, SETTINGS)
    registry = moves.registry
    machine.does(moves.handle("move", {"agent": "alice", "target": "n2"}))
    rounds = machine.process.start(moves.run())
    machine.does(machine.process.wait(SETTINGS.lease))
    rounds.cancel()

    lived = [p for entry in machine.disk.files["journal"] for p in entry.get("places", ())]
    assert [place["node"] for place in lived] == ["n1", "n3", "n2"]
    assert [place["epoch"] for place in lived] == [1, 2, 3]


def test_after_its_disk_failed_the_directory_answers_nothing(machine: Machine) -> None:
    machine.joins("n1")
    machine.disk.full = True
    with pytest.raises(Unreachable):
        machine.spawns()
    machine.disk.heal()

    with pytest.raises(Unreachable, match="its journal"):
        machine.ask("find", agent="alice")
    with pytest.raises(OSError, match="no space left"):
        machine.does(machine.directory.run())


def test_a_lease_is_not_renewed_behind_a_fence_whose_write_failed(machine: Machine) -> None:
    machine.joins("n1")
    machine.disk.failing = 1.0
    fencing = asyncio.Event()
    machine.disk.step = lambda *_: fencing.set()
    rounds = machine.process.start(machine.directory.run())
    machine.does(fencing.wait())

    with pytest.raises(Unreachable, match="its journal"):
        machine.ask("renew", node="n1", incarnation=1, load={"bytes": 0, "waiting": 0})
    with pytest.raises(OSError, match="disk failed"):
        machine.loop.run_until_complete(rounds)
