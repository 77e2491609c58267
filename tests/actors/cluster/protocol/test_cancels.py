"""Turns that are ended before their time: taken as far as they were, or never."""

import asyncio
from collections.abc import Callable
from typing import Any

from lives import Cluster
from seeded import bug, seeded

from kvactors.actors.cluster.testing.machines import host
from kvactors.actors.cluster.testing.machines.process import Process
from kvactors.actors.cluster.testing.steps import Armed

Make = Callable[[int], Cluster]


def ends(cluster: Cluster, text: str) -> dict[str, Any]:
    """What became of the turn of this text, now that it is cancelled."""
    found: dict[str, Any] = cluster.does(cluster.client.cancel("alice", f"r-{text}", 30))["answer"]
    return found


def begun(cluster: Cluster, *texts: str) -> list[asyncio.Task[dict[str, Any]]]:
    """Turns that are asked for one after the other, of which the first has begun."""
    turns = []
    for text in texts:
        request = {"id": f"r-{text}", "text": text}
        turns.append(cluster.world.loop.create_task(cluster.client.turn("alice", request, 30)))
        cluster.passes(0.02)
    return turns


def test_a_turn_that_was_taken_keeps_its_answer(cluster: Make) -> None:
    two = cluster(2)
    two.spawns("alice")
    said = two.says("alice", "one")["answer"]

    assert ends(two, "one") == said
    assert two.shows("alice") == ["one"]


def test_a_request_that_was_cancelled_before_it_came_is_never_taken(cluster: Make) -> None:
    two = cluster(2)
    two.spawns("alice")

    assert ends(two, "one")["text"] == "no r-one"
    assert ends(two, "one")["text"] == "no r-one"
    late = two.says("alice", "one")["answer"]

    assert (late["text"], late["remembers"]) == ("no r-one", [])
    assert two.shows("alice") == ["no r-one"]


def test_that_outlives_the_node_that_was_told(cluster: Make) -> None:
    two = cluster(2)
    two.spawns("alice")
    ends(two, "one")

    two.world.kill(two.asks("find", agent="alice")["node"])

    assert two.says("alice", "one")["answer"]["text"] == "no r-one"


@bug(host, "think")
def a_turn_of_alice_takes_until_it_is_cut(_: Any) -> Any:
    async def think(process: Process, agent: str, cut: set[str], _: float) -> None:
        while agent == "alice" and agent not in cut:
            await process.wait(0.1)

    return think


def test_a_turn_that_runs_ends_and_one_that_waits_is_not_taken(cluster: Make) -> None:
    two = cluster(2)
    two.spawns("alice")
    two.says("alice", "before")
    with seeded(a_turn_of_alice_takes_until_it_is_cut):
        first, second = begun(two, "first", "second")
        running = two.does(two.client.running("alice", 30))
        waits = two.world.loop.create_task(two.client.cancel("alice", "r-second", 30))
        two.passes(1.0)
        still = (running, first.done(), waits.done())
        ended = ends(two, "first")

    assert still == ("r-first", False, False)
    assert ended["text"] == "first"
    for turn, text in ((first, "first"), (second, "no r-second"), (waits, "no r-second")):
        assert two.world.loop.run_until_complete(turn)["answer"]["text"] == text
    assert two.does(two.client.running("alice", 30)) is None
    assert two.shows("alice") == ["before", "first", "no r-second"]


def test_a_request_that_is_cancelled_is_taken_by_another_agent_that_has_one_of_this_id(
    cluster: Make,
) -> None:
    two = cluster(2)
    two.spawns("alice", "bob")
    two.moves("bob", two.asks("find", agent="alice")["node"])
    with seeded(a_turn_of_alice_takes_until_it_is_cut):
        begun(two, "first", "second")
        waits = two.world.loop.create_task(two.client.cancel("alice", "r-second", 30))
        two.passes(1.0)
        said = two.says("bob", "second")["answer"]
        ends(two, "first")

    assert said["text"] == "second"
    assert two.world.loop.run_until_complete(waits)["answer"]["text"] == "no r-second"
    assert (two.shows("alice"), two.shows("bob")) == (["first", "no r-second"], ["second"])


def test_a_cancel_whose_answer_is_lost_is_sent_again_and_ends_no_other_turn(cluster: Make) -> None:
    two = cluster(2)
    two.spawns("alice")
    owner = two.asks("find", agent="alice")["node"]
    two.world.steps.armed.append(Armed("after cancel", lambda _: _cut(two, owner)))

    assert ends(two, "one")["text"] == "no r-one"
    assert two.shows("alice") == ["no r-one"]


def _cut(cluster: Cluster, owner: str) -> None:
    cluster.world.network.cut.add((owner, "client"))
    cluster.world.loop.call_later(1.0, cluster.world.network.cut.clear)
