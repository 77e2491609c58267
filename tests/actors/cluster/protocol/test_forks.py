"""Forks: where they begin is written, and comes to the same on whatever node they are made."""

from collections.abc import Callable

import pytest
from lives import SETTINGS, Cluster

from kvactors.actors.cluster.protocol.errors import (
    AgentExists,
    ForkLost,
    HostFailed,
    UnknownAgent,
)
from kvactors.actors.cluster.testing.steps import Armed
from kvactors.actors.cluster.testing.world import DIRECTORY

Make = Callable[[int], Cluster]


def forks(cluster: Cluster, child: str, request: str = "f") -> bool:
    """Whether the fork of alice is durable."""
    return bool(cluster.does(cluster.client.fork("alice", child, request, 30)))


def talked(cluster: Cluster) -> Cluster:
    """With an agent, alice, that was told two things and has taken back the second."""
    cluster.spawns("alice")
    for text in ("one", "two"):
        cluster.says("alice", text)
    cluster.says("alice", "back", kind="rewind", rewinds=1)
    return cluster


def test_a_fork_remembers_what_its_parent_does_and_both_go_on_apart(cluster: Make) -> None:
    two = talked(cluster(2))
    home = two.asks("find", agent="alice")["node"]

    assert forks(two, "bob")

    assert two.says("bob", "for bob")["answer"]["remembers"] == ["one", "for bob"]
    assert two.says("alice", "for alice")["answer"]["remembers"] == ["one", "for alice"]
    written = two.world.machines[DIRECTORY].disk.files["journal"]
    places = [place for record in written for place in record.get("places", ())]
    # It may be levelled away since.
    assert next(place["node"] for place in places if place["agent"] == "bob") == home
    assert len(two.world.ledgers("bob")) == 2


def test_a_fork_is_made_once_for_a_request_and_none_of_a_name_that_is_taken(cluster: Make) -> None:
    two = talked(cluster(2))
    forks(two, "bob")
    two.says("bob", "for bob")
    two.says("alice", "for alice")

    assert forks(two, "bob")

    assert two.shows("bob") == ["one", "two", "back", "for bob"]
    with pytest.raises(AgentExists):
        forks(two, "bob", "another request")
    with pytest.raises(AgentExists):
        forks(two, "alice", "of itself")
    with pytest.raises(UnknownAgent):
        two.does(two.client.fork("nobody", "bob", "g", 30))


def test_a_fork_of_an_agent_without_turns_begins_with_what_says_how_that_was_spawned(
    cluster: Make,
) -> None:
    two = cluster(2)
    two.does(two.client.spawn("alice", {"system_prompt": "You are Alice."}, "group", 30))

    assert forks(two, "bob")

    assert two.asks("find", agent="bob")["group"] == "group"
    assert two.says("bob", "hello")["answer"]["remembers"] == ["hello"]
    assert two.shows("bob") == ["no f", "hello"]
    assert two.shows("alice") == ["no f"]


def interrupted(cluster: Cluster) -> None:
    """A fork, bob, whose place is written when its node dies; nothing of it is stored."""
    owner = cluster.asks("find", agent="alice")["node"]

    def kill(_: object) -> None:
        cluster.world.kill(owner)
        cluster.world.loop.call_later(6 * SETTINGS.lease, cluster.world.start, owner)

    cluster.world.steps.armed.append(Armed("before store fork", kill))


def test_a_fork_whose_node_died_before_it_had_begun_is_made_of_its_parent_as_it_was(
    cluster: Make,
) -> None:
    two = talked(cluster(2))
    interrupted(two)

    assert forks(two, "bob")

    assert two.shows("bob") == ["one", "two", "back"]
    assert len(two.world.ledgers("bob")) == 2


def test_a_fork_of_an_agent_that_has_gone_on_since_begins_where_it_was_asked_for(
    cluster: Make,
) -> None:
    two = talked(cluster(2))
    interrupted(two)
    forking = two.world.loop.create_task(two.client.fork("alice", "bob", "f", 90))
    two.passes(4 * SETTINGS.lease)

    two.says("alice", "meanwhile")
    assert two.world.loop.run_until_complete(forking)

    assert two.shows("bob") == ["one", "two", "back"]
    assert two.shows("alice") == ["one", "two", "back", "meanwhile"]


def test_a_fork_that_has_not_begun_when_its_parent_is_forgotten_says_so(cluster: Make) -> None:
    two = talked(cluster(2))
    interrupted(two)
    forking = two.world.loop.create_task(two.client.fork("alice", "bob", "f", 90))
    two.passes(4 * SETTINGS.lease)

    two.asks("forget", agent="alice")
    two.spawns("alice")

    with pytest.raises(ForkLost, match="'bob' was to begin with turns of 'alice'"):
        two.world.loop.run_until_complete(forking)
    with pytest.raises(ForkLost):
        two.says("bob", "are you there?")


def test_a_fork_moves_and_survives_as_any_agent(cluster: Make) -> None:
    three = talked(cluster(3))
    forks(three, "bob")
    owner = three.asks("find", agent="bob")["node"]
    target = next(name for name in three.world.nodes if name != owner)

    three.moves("bob", target)
    three.says("bob", "there")
    three.world.kill(target)

    assert three.shows("bob") == ["one", "two", "back", "there"]


def test_a_fork_that_the_disk_refused_begins_where_it_was_first_asked_for(cluster: Make) -> None:
    two = talked(cluster(2))
    disk = two.world.machines[two.asks("find", agent="alice")["node"]].disk

    def fill(_: object) -> None:
        disk.full = True

    two.world.steps.armed.append(Armed("before store fork", fill))
    with pytest.raises(HostFailed, match="no space left"):
        forks(two, "bob")
    disk.heal()
    two.says("alice", "meanwhile")

    assert forks(two, "bob")

    assert two.shows("bob") == ["one", "two", "back"]
