"""An agent with a running turn does not move: it does when the turn is done."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from lives import SETTINGS, Cluster
from seeded import bug, seeded

from kvactors.actors.cluster.protocol import client as client_module
from kvactors.actors.cluster.protocol.client import Client, forget
from kvactors.actors.cluster.protocol.directory.driver import TRIES
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.testing.machines import host
from kvactors.actors.cluster.testing.machines.host import ModelHost

Make = Callable[[int], Cluster]


@bug(ModelHost, "turn")
def a_turn_takes_long(true: Any) -> Any:
    async def turn(self: ModelHost, agent: str, request: Any, tell: Any) -> Any:
        if "long" in request["text"]:
            await asyncio.sleep(LONG)
        return await true(self, agent, request, tell)

    return turn


LONG = 5 * SETTINGS.lease


def test_a_client_asks_again_who_has_an_agent_that_was_forgotten_or_that_it_cannot_remember() -> (
    None
):
    asked = list[str]()

    class Answering:
        async def call(self, to: str, method: str, record: Record, **_: Any) -> Record:
            if method == "whose":
                return {"a2": {"node": "n1", "born": 1}}
            if method == "find":
                asked.append(record["agent"])
            return {"node": "n1", "epoch": 1}

    async def live() -> None:
        client: Any = Client(cast(Any, Answering()), cast(Any, None), SETTINGS)
        for agent in ("a0", "a1", "a2", "a2", "a1", "a0"):
            await client.find(agent)
        client.tries = lambda *_: None
        await forget(client, "a2", 1)
        await client.find("a2")

    @bug(client_module, "MOST_OWNERS")
    def it_remembers_two(_: Any) -> Any:
        return 2

    with seeded(it_remembers_two):
        asyncio.run(live())

    assert asked == ["a0", "a1", "a2", "a0", "a2"]


@pytest.mark.parametrize("drained", [False, True])
def test_a_turn_that_takes_long_is_done_where_it_began_and_then_its_agent_moves(
    cluster: Make, *, drained: bool
) -> None:
    three = cluster(3)
    three.spawns("alice")
    here = three.says("alice", "one")["node"]
    there = next(node for node in three.world.nodes if node != here)

    async def ask_and_move() -> tuple[Any, list[str]]:
        request = {"id": "r-long", "text": "a long one"}
        turn = asyncio.ensure_future(three.client.turn("alice", request, 60))
        await asyncio.sleep(SETTINGS.lease / 4)
        if drained:
            await three.client.ask("drain", {"node": here, "on": True}, 30)
        else:
            await three.client.ask("move", {"agent": "alice", "target": there}, 30)
        lived = []
        while not turn.done():
            lived.append((await three.client.ask("find", {"agent": "alice"}, 30))["node"])
            await asyncio.sleep(SETTINGS.lease / 4)
        return await turn, lived[:-1]

    with seeded(a_turn_takes_long):
        said, lived = three.does(ask_and_move())
    three.passes(2 * SETTINGS.lease)

    assert (said["node"], said["answer"]["index"], said["durable"]) == (here, 1, True)
    assert lived == [here] * len(lived)
    assert len(lived) > 10
    next_one = three.says("alice", "two")
    assert next_one["answer"]["index"] == 2
    assert next_one["node"] != here


def test_an_agent_moves_though_each_piece_of_its_kv_takes_longer_than_a_call(
    cluster: Callable[[int], Cluster],
) -> None:
    three = cluster(3)
    three.spawns("alice")
    with seeded(bug(host, "SAVED")(lambda _: 1.0)):
        for turn in range(20):
            three.says("alice", f"turn {turn}")
    place = three.asks("find", agent="alice")
    (target,) = {*three.world.nodes} - {place["node"], place["replica"]}
    slow: list[str] = []

    @bug(ModelHost, "store_piece")
    def pieces_are_large(true: Any) -> Any:
        async def store(self: ModelHost, agent: str, piece: Any) -> None:
            slow.append(agent)
            await asyncio.sleep(1.2 * SETTINGS.call)
            await true(self, agent, piece)

        return store

    with seeded(pieces_are_large):
        three.moves("alice", target)

    assert len(slow) > TRIES
    assert three.says("alice", "after")["answer"]["index"] == 20
