"""Whole clusters without faults: more agents than memory, names that become free, nodes that come
and go."""

from collections.abc import Callable

import pytest
from lives import SETTINGS, Cluster

from kvactors.actors.cluster.protocol.errors import UnknownAgent

Make = Callable[[int], Cluster]


def test_more_agents_than_memory_all_answer_and_few_are_in_it(cluster: Make) -> None:
    two = cluster(2)
    agents = [f"a{index}" for index in range(9)]
    two.spawns(*agents)

    for turn in range(3):
        answers = [two.says(agent, f"{agent}.{turn}") for agent in agents]
        assert [answer["answer"]["index"] for answer in answers] == [turn] * 9
        assert all(answer["durable"] for answer in answers)

    two.passes(1)
    loads = [member["bytes"] for member in two.asks("stats")["nodes"].values()]
    assert all(0 < load <= SETTINGS.served * 2**20 for load in loads)


def test_a_forgotten_agent_leaves_nothing_and_its_name_is_free(cluster: Make) -> None:
    two = cluster(2)
    two.spawns("alice")
    two.says("alice", "in the first life")

    two.asks("forget", agent="alice")
    with pytest.raises(UnknownAgent):
        two.says("alice", "to nobody")
    two.passes(4 * SETTINGS.lease)
    assert two.world.ledgers("alice") == {}

    two.spawns("alice")
    assert two.says("alice", "in the second")["answer"]["index"] == 0


def test_a_name_that_is_used_again_at_once_has_no_memory_of_the_last(cluster: Make) -> None:
    two = cluster(2)
    two.spawns("alice")
    two.says("alice", "in the first life")

    two.asks("forget", agent="alice")
    two.spawns("alice")

    assert two.says("alice", "in the second")["answer"]["index"] == 0
    two.passes(4 * SETTINGS.lease)
    assert set(map(tuple, two.world.ledgers("alice").values())) == {("in the second",)}
    assert "in the first life" in two.world.aside()


def test_a_node_that_joins_gets_its_part(cluster: Make) -> None:
    three = cluster(3)
    three.world.kill("n2")
    agents = [f"a{index:02}" for index in range(24)]
    three.spawns(*agents)
    for agent in agents:
        three.says(agent, f"{agent} before")
    assert three.owners()["n2"] == 0

    three.world.start("n2")
    three.passes(30)

    assert all(8 * 0.75 <= count <= 8 * 1.25 for count in three.owners().values())
    assert sum(three.owners().values()) == 24
    assert [three.says(agent, f"{agent} after")["answer"]["index"] for agent in agents] == [1] * 24


def test_a_drained_node_gives_all_away_and_may_come_back(cluster: Make) -> None:
    three = cluster(3)
    agents = [f"a{index}" for index in range(9)]
    three.spawns(*agents)
    for agent in agents:
        three.says(agent, f"{agent} before")

    three.asks("drain", node="n1", on=True)
    three.passes(30)

    stats = three.asks("stats")["nodes"]["n1"]
    assert (stats["agents"], stats["replicas"]) == (0, 0)
    assert all("n1" not in three.world.ledgers(agent) for agent in agents)
    three.asks("drain", node="n1", on=False)
    three.passes(30)
    assert three.owners()["n1"] > 0
