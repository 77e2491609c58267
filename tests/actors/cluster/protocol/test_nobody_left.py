"""Agents that nobody has who is there, and hosts that fail for one agent: the others, and their
node, go on."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from lives import SETTINGS, Cluster
from machine import record
from seeded import bug, seeded

from kvactors.actors.cluster.protocol.errors import UnknownAgent, for_another_time
from kvactors.actors.cluster.testing.machines.disk import Disk
from kvactors.actors.cluster.testing.machines.host import ModelHost
from kvactors.actors.cluster.testing.machines.process import Process
from kvactors.actors.errors import SaveFailed
from kvactors.core.errors import SystemStopped

Make = Callable[[int], Cluster]


def who_have(cluster: Cluster, agent: str) -> list[str]:
    place = cluster.asks("find", agent=agent)
    return [place["node"], place["replica"]]


def test_who_was_lost_with_all_its_disks_can_be_forgotten_and_begun_anew(cluster: Make) -> None:
    four = cluster(4)
    four.spawns("alice")
    four.says("alice", "before")
    four.passes(SETTINGS.lease)
    for node in who_have(four, "alice"):
        four.world.lose(node)
    four.passes(4 * SETTINGS.lease)

    four.asks("forget", agent="alice")

    with pytest.raises(UnknownAgent):
        four.says("alice", "to nobody")
    four.spawns("alice")
    assert four.says("alice", "after")["answer"]["index"] == 0


def test_who_was_forgotten_while_its_nodes_were_away_is_forgotten_when_they_are_back(
    cluster: Make,
) -> None:
    four = cluster(4)
    four.spawns("alice", "bob")
    four.says("alice", "before")
    four.says("bob", "before")
    four.passes(SETTINGS.lease)
    away = who_have(four, "alice")
    for node in away:
        four.world.kill(node)
    four.passes(4 * SETTINGS.lease)

    four.asks("forget", agent="alice")
    for node in away:
        four.world.start(node)
    four.passes(6 * SETTINGS.lease)

    assert four.world.ledgers("alice") == {}
    assert four.says("bob", "after")["answer"]["index"] == 1


def test_who_comes_with_a_store_and_has_a_name_that_was_forgotten_is_kept_aside(
    cluster: Make,
) -> None:
    three = cluster(3)
    three.spawns("alice")
    three.says("alice", "forgotten")
    three.passes(SETTINGS.lease)
    joins = next(node for node in three.world.nodes if node not in who_have(three, "alice"))
    three.asks("forget", agent="alice")
    three.passes(4 * SETTINGS.lease)
    three.world.kill(joins)
    three.world.machines[joins].disk.files["ledgers"]["alice"] = [record("years of work")]

    three.world.start(joins)
    three.passes(6 * SETTINGS.lease)

    assert three.world.ledgers("alice") == {}
    assert three.world.aside() == ["years of work"]


def test_who_could_not_be_read_when_its_node_joined_is_there_as_soon_as_it_can_be(
    cluster: Make,
) -> None:
    three = cluster(3)
    three.passes(SETTINGS.lease)
    three.world.kill("n1")
    three.world.machines["n1"].disk.files["ledgers"] = {
        agent: [record(f"{agent}'s")] for agent in ("alice", "bob")
    }

    @bug(ModelHost, "stored")
    def the_disk_does_not_give_alice(true: Any) -> Any:
        async def stored(host: ModelHost) -> dict[str, int]:
            return {agent: n for agent, n in (await true(host)).items() if agent != "alice"}

        return stored

    with seeded(the_disk_does_not_give_alice):
        three.world.start("n1")
        three.passes(4 * SETTINGS.lease)
        assert three.shows("bob") == ["bob's"]
        with pytest.raises(UnknownAgent):
            three.shows("alice")
    three.passes(4 * SETTINGS.lease)

    assert three.shows("alice") == ["alice's"]


def test_a_node_whose_disk_refuses_the_end_of_one_agent_keeps_its_others(cluster: Make) -> None:
    three = cluster(3)
    three.spawns("alice")
    owner = three.says("alice", "one")["node"]
    three.passes(SETTINGS.lease)
    full, refused = threading.Event(), list[str]()
    full.set()

    @bug(Disk, "read")
    def the_disk_is_full(true: Any) -> Any:
        async def read(disk: Disk, process: Process, what: str) -> None:
            if full.is_set() and (process.name, what) == (owner, "end"):
                refused.append(what)
                raise SaveFailed("the disk has refused turns of 'alice'")
            await true(disk, process, what)

        return read

    others = [name for name in three.world.machines if name != owner]
    cut = [(owner, other) for other in others] + [(other, owner) for other in others]
    with seeded(the_disk_is_full):
        three.world.network.cut.update(cut)
        three.passes(4 * SETTINGS.lease)
        assert three.says("alice", "two")["node"] != owner
        three.passes(2 * SETTINGS.lease)
        three.world.network.cut.difference_update(cut)
        three.passes(8 * SETTINGS.lease)
        full.clear()
        three.passes(4 * SETTINGS.lease)

    assert refused
    assert not [what for what in three.world.oracle.broken if "ended with" in what]
    assert three.asks("stats")["nodes"][owner]["alive"]


def test_a_node_whose_host_has_ended_ends_and_others_take_over(cluster: Make) -> None:
    three = cluster(3)
    three.spawns("alice")
    owner = three.says("alice", "one")["node"]
    three.passes(SETTINGS.lease)

    @bug(Disk, "read")
    def nobody_writes_any_more(true: Any) -> Any:
        async def read(disk: Disk, process: Process, what: str) -> None:
            if process.name == owner:
                raise SystemStopped("the system is stopped")
            await true(disk, process, what)

        return read

    with seeded(nobody_writes_any_more):
        three.passes(4 * SETTINGS.lease)
        assert [what for what in three.world.oracle.broken if f"{owner} ended with" in what]


def test_what_a_node_cannot_do_as_its_disk_fails_is_for_another_time_and_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with for_another_time():
        raise OSError("the disk does not answer")

    assert "the disk does not answer" in caplog.text
