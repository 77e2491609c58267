"""What comes for an agent is taken once, and what an agent says leaves only where it lives."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from lives import SETTINGS, Cluster

from kvactors.actors.cluster.protocol.errors import AgentMoving, LeaseLost, Unreachable
from kvactors.actors.cluster.testing.world import DIRECTORY, Machine


class Mailed:
    """`alice` in a `cluster`, and messages to her in calls that a test makes up."""

    def __init__(self, cluster: Cluster) -> None:
        self.world = cluster.world
        self.cluster = cluster
        self.somebody = self.world.letters.begins(None, "somebody", lambda: False)
        cluster.spawns("alice")
        cluster.does(cluster.client.serve("alice", 30))

    @property
    def place(self) -> dict[str, Any]:
        return self.cluster.asks("find", agent="alice")

    @property
    def owner(self) -> Machine:
        return self.world.machines[self.place["node"]]

    @property
    def elsewhere(self) -> str:
        return next(node for node in self.world.nodes if node != self.place["node"])

    def call(self, number: int, epoch: int | None = None, *, asks: bool = False) -> dict[str, Any]:
        """One message, in the call of this number, to whom she was found with in this epoch."""
        sent = self.world.letters.sends(self.somebody, "alice", asks=asks)
        letters = [[None, msgpack.packb([sent.key, 0]), asks, None]]
        mail = [["alice", epoch or self.place["epoch"], letters]]
        return {"from": "w", "number": number, "mail": mail}

    def comes(self, call: dict[str, Any]) -> list[Any]:
        """What the owner says of the one message in it."""
        answer = self.cluster.does(self.owner.server.handle("mail", call))
        return list(answer["groups"][0])

    def asked(self, call: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """What the owner says of it: it has been taken, and is not answered yet."""
        items: AsyncIterator[dict[str, Any]] = self.owner.server.stream("mail", call)
        assert self.cluster.does(anext(items))["groups"] == [[1, None]]
        return items


@pytest.fixture
def mailed(cluster: Callable[[int], Cluster]) -> Mailed:
    return Mailed(cluster(3))


def test_a_call_that_comes_twice_is_taken_once_and_nobody_is_told_that_it_was_not(
    mailed: Mailed,
) -> None:
    call = mailed.call(0)

    assert mailed.comes(call) == [1, None]
    with pytest.raises(Unreachable):
        mailed.comes(call)

    assert mailed.world.oracle.broken == []


def test_a_call_that_comes_behind_a_later_one_is_not_taken(mailed: Mailed) -> None:
    early, late = mailed.call(0), mailed.call(1)

    assert mailed.comes(late) == [1, None]
    with pytest.raises(Unreachable):
        mailed.comes(early)


def test_a_call_to_who_had_the_agent_before_is_not_taken_by_who_has_it_again(
    mailed: Mailed,
) -> None:
    home, old = mailed.place["node"], mailed.call(0)
    mailed.cluster.moves("alice", mailed.elsewhere)
    mailed.cluster.moves("alice", home)

    taken, error = mailed.comes(old)

    assert (taken, error["code"]) == (0, "StaleEpoch")
    assert mailed.comes(mailed.call(1)) == [1, None]


def test_what_a_fenced_owners_behaviour_said_does_not_leave_when_its_node_is_back(
    mailed: Mailed,
) -> None:
    mailed.cluster.says("alice", "hello")
    zombie = mailed.owner
    begun = mailed.world.letters.lives("alice")[-1]
    look = zombie.server.speaking.permit("alice", lambda: not begun.ended)
    assert look()

    mailed.world.pause(zombie.process.name)
    mailed.cluster.passes(3 * SETTINGS.lease)
    mailed.cluster.says("alice", "are you there?")
    assert mailed.owner is not zombie
    mailed.world.resume(zombie.process.name)
    with pytest.raises(LeaseLost):
        look()

    looks = []
    while False not in looks:
        mailed.cluster.passes(SETTINGS.lease / 16)
        with suppress(LeaseLost, AgentMoving):
            looks.append(look())
    assert looks == [False]


def test_an_answer_that_comes_when_the_lease_is_over_waits_for_the_next_one(
    mailed: Mailed,
) -> None:
    answers = mailed.asked(mailed.call(0, asks=True))
    mailed.world.pause(DIRECTORY)
    mailed.cluster.passes(2 * SETTINGS.lease)
    given = asyncio.ensure_future(anext(answers), loop=mailed.world.loop)
    mailed.cluster.passes(SETTINGS.lease)
    assert not given.done()

    mailed.world.resume(DIRECTORY)

    ((_, body),) = mailed.cluster.does(given)["answers"]
    assert msgpack.unpackb(body) is not None


def test_an_answer_whose_node_is_cut_off_from_the_directory_is_not_waited_for_for_ever(
    mailed: Mailed,
) -> None:
    answers = mailed.asked(mailed.call(0, asks=True))

    mailed.world.pause(DIRECTORY)
    mailed.cluster.passes(2 * SETTINGS.lease)
    given = asyncio.ensure_future(anext(answers), loop=mailed.world.loop)
    mailed.cluster.passes(3 * SETTINGS.lease)

    assert given.done()
    assert given.result() == {"answers": [], "lost": [0]}


def test_an_answer_of_a_fenced_owners_behaviour_is_never_given(mailed: Mailed) -> None:
    answers, zombie = mailed.asked(mailed.call(0, asks=True)), mailed.owner

    mailed.world.pause(zombie.process.name)
    mailed.cluster.passes(3 * SETTINGS.lease)
    mailed.cluster.says("alice", "are you there?")
    assert mailed.owner is not zombie
    mailed.world.resume(zombie.process.name)

    assert mailed.cluster.does(anext(answers)) == {"answers": [], "lost": [0]}


def test_what_an_owner_said_under_its_lease_leaves_though_the_agent_has_moved(
    mailed: Mailed,
) -> None:
    look = mailed.owner.server.speaking.permit("alice", lambda: False)

    mailed.cluster.moves("alice", mailed.elsewhere)

    assert look()


def test_what_comes_for_one_that_two_calls_take_away_waits_for_both(mailed: Mailed) -> None:
    assert mailed.comes(mailed.call(0)) == [1, None]
    leaves = {"agent": "alice", "target": mailed.elsewhere, "epoch": mailed.place["epoch"] + 1}
    first, second = (
        mailed.world.loop.create_task(mailed.owner.server.handle("release", leaves)) for _ in "ab"
    )
    mailed.cluster.passes(0)
    # It is late, and its directory has called again.
    first.cancel()

    taken, error = mailed.comes(mailed.call(1))
    assert (taken, error["code"]) == (0, "AgentMoving")
    mailed.cluster.does(second)
    assert mailed.world.oracle.broken == []
