"""Whole clusters without faults: more agents than memory, names that become free, nodes that come
and go."""

import asyncio
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


def test_an_agent_is_forgotten_behind_a_turn_that_takes_longer_than_a_call(cluster: Make) -> None:
    two = cluster(2)
    two.spawns("alice")
    owner = two.says("alice", "one")["node"]
    two.world.machines[owner].disk.slow = 500.0
    request = {"id": "r-two", "text": "two"}

    async def ask_and_forget() -> None:
        turn = asyncio.ensure_future(two.client.turn("alice", request, 30))
        await asyncio.sleep(0.1)
        await two.client.ask("forget", {"agent": "alice"}, 30)
        await asyncio.gather(turn, return_exceptions=True)

    two.does(ask_and_forget())

    assert two.owners() == {}
    with pytest.raises(UnknownAgent):
        two.asks("forget", agent="bob")


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


def test_an_agent_answers_while_it_is_copied_to_where_it_goes(cluster: Make) -> None:
    three = cluster(3)
    three.spawns("alice")
    for turn in range(200):
        three.says("alice", f"before {turn}")
    place = three.asks("find", agent="alice")
    target = next(n for n in three.world.nodes if n not in (place["node"], place["replica"]))
    three.world.machines[target].disk.slow = 10.0

    began = three.world.loop.time()
    three.asks("move", agent="alice", target=target)
    waited: list[float] = []
    while three.asks("find", agent="alice")["node"] != target:
        asked = three.world.loop.time()
        three.says("alice", f"meanwhile {len(waited)}")
        waited.append(three.world.loop.time() - asked)

    took = three.world.loop.time() - began
    assert len(waited) > 5
    assert max(waited) < took / 3
    assert three.says("alice", "after")["answer"]["index"] == 200 + len(waited)


def test_who_is_sent_elsewhere_on_the_way_goes_there(cluster: Make) -> None:
    three = cluster(3)
    three.spawns("alice")
    for turn in range(50):
        three.says("alice", f"before {turn}")
    here = three.asks("find", agent="alice")["node"]
    first, last = (node for node in three.world.nodes if node != here)
    three.world.machines[first].disk.slow = 10.0

    three.asks("move", agent="alice", target=first)
    three.asks("move", agent="alice", target=last)
    while not (told := three.asks("moved", agent="alice"))["over"]:
        pass

    assert told["place"]["node"] == last
    assert three.says("alice", "after")["answer"]["index"] == 50


def test_who_waits_for_a_move_is_told_at_its_end(cluster: Make) -> None:
    three = cluster(3)
    three.spawns("alice")
    three.says("alice", "before")

    began = three.world.loop.time()
    for target in 3 * three.world.nodes:
        three.asks("move", agent="alice", target=target)
        told = three.asks("moved", agent="alice")
        assert (told["over"], told["place"]["node"]) == (True, target)

    # No rounds of the directory are in it, and no question that is asked again and again.
    assert three.world.loop.time() - began < 9 * SETTINGS.lease / 12


def test_whom_a_person_has_moved_stays_there_until_it_is_forced_away(cluster: Make) -> None:
    three = cluster(3)
    agents = [f"a{index:02}" for index in range(24)]
    three.spawns(*agents)
    for agent in agents:
        three.says(agent, f"{agent} before")

    put = agents[::2]
    for agent in put:
        three.asks("move", agent=agent, target="n1")
        while not three.asks("moved", agent=agent)["over"]:
            pass
    three.passes(30)

    def lives_on_n1() -> list[str]:
        places = three.asks("agents", after="", count=99)
        return [agent for agent, place in places.items() if place["node"] == "n1"]

    # The others have made room.
    assert lives_on_n1() == put
    three.asks("drain", node="n1", on=True)
    three.passes(30)
    assert lives_on_n1() == []
    three.asks("drain", node="n1", on=False)
    three.passes(30)
    assert 24 / 3 * 0.75 <= len(lives_on_n1()) <= 24 / 3 * 1.25


def test_who_says_that_it_leaves_is_taken_over_at_once(cluster: Make) -> None:
    three = cluster(3)
    three.spawns("alice")
    place = three.asks("find", agent="alice")
    owner = three.says("alice", "one")["node"]
    replica = three.asks("find", agent="alice")["replica"]
    machine = three.world.machines[owner]

    began = three.world.loop.time()
    three.does(machine.process.start(machine.server.leave()))
    after = three.says("alice", "two")

    assert place["node"] == owner
    assert (after["node"], after["answer"]["index"]) == (replica, 1)
    # Else it is that of a lease.
    assert three.world.loop.time() - began < SETTINGS.lease / 4


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
