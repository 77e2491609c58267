"""A node that is lost with its disk: what was durable is on another, and what was never used begins
anywhere. With replication off it is lost, so that these tests would see it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import pytest
from lives import SETTINGS, Cluster
from losing import the_replica_gets_nothing
from seeded import bug, seeded

from kvactors.actors.cluster.protocol.client import Client, forget
from kvactors.actors.cluster.protocol.errors import Unanswered, UnknownAgent, Unreachable
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.actors.cluster.testing.machines.host import ModelHost
from kvactors.actors.cluster.testing.machines.network import SimTransport
from kvactors.actors.cluster.testing.steps import Armed
from kvactors.actors.cluster.testing.world import DIRECTORY

Make = Callable[[int], Cluster]
Turn = Callable[[Client, dict[str, Any], float], Awaitable[dict[str, Any]]]
TURNS = [f"turn {number}" for number in range(5)]
# An attempt that fails does so before that.
LONG = SETTINGS.lease + 10 * SETTINGS.call + 1


async def told(client: Client, request: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What alice answers to it."""
    return dict((await client.turn("alice", request, seconds))["answer"])


async def streamed(client: Client, request: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The same, of a stream."""
    items = [item async for item in client.stream("alice", request, seconds)]
    return dict(next(item["answer"] for item in items if "answer" in item))


def lose(three: Cluster, node: str) -> None:
    """It is gone, others know, and another node has come in its place."""
    three.world.kill(node)
    three.passes(2 * SETTINGS.lease)
    three.world.lose(node)


def taken_over(three: Cluster) -> tuple[str, list[str]]:
    """Who owned alice when she was told five things, and what she shows without that node."""
    three.spawns("alice")
    told = [three.says("alice", text) for text in TURNS]
    assert all(one["durable"] for one in told)
    owner = told[-1]["node"]
    lose(three, owner)
    return owner, three.shows("alice")


def test_what_was_durable_is_shown_by_another_node_and_copied_to_a_third(cluster: Make) -> None:
    three = cluster(3)

    owner, shown = taken_over(three)
    three.passes(4 * SETTINGS.lease)

    assert shown == TURNS
    assert owner not in three.world.nodes
    assert sorted(map(len, three.world.ledgers("alice").values())) == [5, 5]
    assert three.says("alice", "after")["answer"]["index"] == 5


def test_with_replication_off_it_is_lost(cluster: Make) -> None:
    with seeded(the_replica_gets_nothing):
        _, shown = taken_over(cluster(3))

    assert shown == []


def test_an_agent_that_was_never_used_begins_elsewhere(cluster: Make) -> None:
    three = cluster(3)
    three.spawns("alice", "bob")
    nodes = {three.asks("find", agent=agent)["node"] for agent in ("alice", "bob")}

    for node in nodes:
        three.world.kill(node)
    three.passes(2 * SETTINGS.lease)

    assert three.says("alice", "hello")["answer"]["index"] == 0
    assert three.says("bob", "hello, bob")["answer"]["index"] == 0


def test_a_call_to_forget_an_agent_that_comes_late_leaves_the_next_of_its_name_alone(
    cluster: Make,
) -> None:
    two = cluster(2)
    two.spawns("alice")
    two.says("alice", "in the first life")
    born = two.asks("whose", agents=["alice"])["alice"]["born"]
    two.does(forget(two.client, "alice", 30))
    two.spawns("alice")
    two.says("alice", "in the second")

    two.asks("forget", agent="alice", born=born)
    assert two.shows("alice") == ["in the second"]

    two.does(forget(two.client, "alice", 30))
    two.does(forget(two.client, "alice", 30))
    with pytest.raises(UnknownAgent):
        two.says("alice", "to nobody")
    with pytest.raises(UnknownAgent):
        two.does(forget(two.client, "nobody", 30))


@pytest.mark.parametrize("timeout", [None, 20 * SETTINGS.lease])
def test_a_turn_is_asked_again_for_as_long_as_since_its_owner_was_lost_unless_it_has_a_timeout(
    cluster: Make, timeout: float | None
) -> None:
    three = cluster(3)
    three.spawns("alice")
    owner = three.says("alice", "one")["node"]
    three.passes(SETTINGS.lease)

    @bug(ModelHost, "turn")
    def turns_take_long_before_that(true: Any) -> Any:
        async def turn(host: ModelHost, agent: str, request: Record, tell: Any) -> Any:
            if three.world.machines[owner].process.alive:
                await asyncio.sleep(1000)
            return await true(host, agent, request, tell)

        return turn

    lost = 19.5 * SETTINGS.lease
    three.world.loop.call_later(lost, three.world.kill, owner)
    request = {"id": "r-two", "text": "two", "timeout": timeout}
    with seeded(turns_take_long_before_that):
        asked = three.client.turn("alice", request, timeout or 4 * SETTINGS.lease)
        if timeout is None:
            assert three.does(asked)["answer"]["index"] == 1
        else:
            with pytest.raises(Unanswered):
                three.does(asked)


@pytest.mark.parametrize("lease", [3.0, 0.5])
def test_a_directory_that_gives_no_sign_is_given_up_however_short_a_lease_is(lease: float) -> None:
    with closing(Cluster(2, Settings(lease=lease, call=1.0))) as two:
        two.spawns("alice")
        two.world.pause(DIRECTORY)
        began = two.world.loop.time()

        with pytest.raises(Unanswered):
            two.does(two.client.ask("stats", {}, 5))
        assert two.world.loop.time() - began < 10


def test_a_turn_that_its_owner_cannot_begin_is_given_up_however_late_it_fails() -> None:
    @bug(SimTransport, "call")
    def turns_fail_late(true: Any) -> Any:
        async def call(*at: Any, within: float | None = None) -> Record:
            if at[2] == "turn":
                await asyncio.sleep(2 * Settings().lease)
                raise Unreachable(to="the node of its parent", method="read")
            return dict(await true(*at, within=within))

        return call

    with closing(Cluster(1, Settings())) as one:
        one.spawns("alice")
        with seeded(turns_fail_late), pytest.raises(Unanswered):
            one.does(one.client.turn("alice", {"id": "r-one", "text": "one"}, 60))


@pytest.mark.parametrize("turn", [told, streamed])
@pytest.mark.parametrize(("seconds", "ends"), [(3 * LONG, 3), (LONG, 99)])
def test_a_turn_outlasts_a_few_nodes_and_one_that_ends_more_of_them_is_given_up(
    cluster: Make, turn: Turn, seconds: float, ends: int
) -> None:
    three = cluster(3)
    world, ended = three.world, list[str]()
    three.spawns("alice")

    @bug(ModelHost, "turn")
    def turns_end_their_node(true: Any) -> Any:
        async def turn(host: ModelHost, agent: str, request: Record, tell: Any) -> Any:
            if len(ended) < ends:
                ended.append(world.machines[DIRECTORY].server.registry.places[agent].node)
                world.loop.call_later(seconds, world.kill, ended[-1])
                world.loop.call_later(seconds + 0.1, world.start, ended[-1])
                await asyncio.sleep(2 * seconds)
            return await true(host, agent, request, tell)

        return turn

    with seeded(turns_end_their_node):
        asked = turn(three.client, {"id": "r-one", "text": "one"}, 2 * LONG)
        if ends < 99:
            assert three.does(asked)["index"] == 0
        else:
            with pytest.raises(Unanswered):
                three.does(asked)
            assert len(ended) < 9


def test_who_is_let_go_of_by_a_node_that_stands_still_is_taken_over_as_others_are(
    cluster: Make,
) -> None:
    four = cluster(4)
    four.spawns("alice")
    four.says("alice", "one")
    four.passes(SETTINGS.lease)
    place = four.asks("find", agent="alice")
    target = next(n for n in four.world.nodes if n not in (place["node"], place["replica"]))
    four.world.steps.armed.append(
        Armed("before release", lambda process: four.world.pause(process.name))
    )

    four.asks("move", agent="alice", target=target)
    four.passes(SETTINGS.lease)
    began = four.world.loop.time()

    assert four.says("alice", "two")["answer"]["index"] == 1
    assert four.world.loop.time() - began < 4 * SETTINGS.lease
