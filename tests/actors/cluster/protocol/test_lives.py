"""Whole clusters without faults: more agents than memory, names that become free, nodes that come
and go."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from kvactors.actors.cluster.protocol.client import Client
from kvactors.actors.cluster.protocol.errors import UnknownAgent
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.actors.cluster.testing.world import DIRECTORY, World

SETTINGS = Settings(lease=2.0, call=0.5, served=2)


class Cluster:
    """A world and somebody who asks."""

    def __init__(self, nodes: int) -> None:
        self.world = World(1, nodes, SETTINGS)
        self.client: Client = self.world.client("client")

    def does(self, work: Awaitable[Any]) -> Any:
        async def waits() -> Any:
            return await work

        return self.world.loop.run_until_complete(waits())

    def spawns(self, *agents: str) -> None:
        for agent in agents:
            self.does(self.client.spawn(agent, {}, None, 30))

    def says(self, agent: str, text: str) -> dict[str, Any]:
        request = {"id": f"r-{text}", "text": text}
        return dict(self.does(self.client.turn(agent, request, 30)))

    def asks(self, method: str, **record: object) -> dict[str, Any]:
        return dict(self.does(self.client.ask(method, record, 30)))

    def passes(self, seconds: float) -> None:
        self.does(self.world.machines[DIRECTORY].process.wait(seconds))

    def owners(self) -> Counter[str]:
        return Counter(place["node"] for place in self.asks("agents", after="", count=99).values())


@pytest.fixture
def cluster() -> Iterator[Callable[[int], Cluster]]:
    made: list[Cluster] = []

    def make(nodes: int) -> Cluster:
        made.append(Cluster(nodes))
        return made[-1]

    yield make
    for one in made:
        one.world.close()


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
