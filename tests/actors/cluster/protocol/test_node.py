"""A node by itself, before a directory that says what a test wants."""

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from machine import SETTINGS, Answering, Machine, record
from seeded import bug, seeded

from kvactors.actors.cluster.protocol.errors import LeaseLost
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.locks import Locks
from kvactors.actors.cluster.protocol.node.notes import Notes
from kvactors.actors.cluster.protocol.node.server import Node
from kvactors.actors.cluster.protocol.node.sweep import BATCH, BATCHES, Sweep
from kvactors.actors.cluster.protocol.records import Place
from kvactors.actors.cluster.testing.machines.host import ModelHost, texts
from kvactors.core.errors import InvalidConfig

ALONE = replace(SETTINGS, durable="one")


class Others(Answering):
    """What n1 is answered: by a directory in which its agents were `born` in one epoch, and by n2.
    `asked` has the methods, `looked` the agents of sweeps, `meanwhile` what happens while a replica
    is named."""

    def __init__(self, born: int = 1) -> None:
        self.born, self.epoch = born, born
        self.asked, self.looked = Counter[str](), list[str]()
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        self.replica: str | None = None

    async def answer(self, method: str, asked: Record) -> Record:
        self.asked[method] += 1
        if method == "name" and self.meanwhile:
            await self.meanwhile()
        if method in ("claim", "name"):
            self.epoch = max(self.epoch, self.born) + 1
            named = asked.get("replica")
            return Place(asked["agent"], "n1", 1, self.epoch, named, None, self.born).to_record()
        if method == "whose":
            self.looked += asked["agents"]
            place = {"node": "n2", "replica": self.replica, "target": None, "epoch": 5}
            return dict.fromkeys(asked["agents"], place)
        if method == "replicate":
            return {"have": asked["start"] + len(asked["records"])}
        return {"node": "n2", "have": 0, "digests": []}


def turn(text: str) -> Record:
    return {"agent": "alice", "request": {"id": f"r-{text}", "text": text}}


def test_a_name_that_is_used_again_is_served_where_the_last_is_still_in_memory(
    machine: Machine,
) -> None:
    others = Others()
    node = Node("n1", others, machine.clock, machine.journal, machine.host, settings=ALONE)
    machine.does(node.begin())
    first = machine.does(node.handle("turn", turn("in the first life")))

    # It stood still past its lease: others served it, and forgot it.
    others.born = 5
    machine.does(node.begin())
    second = machine.does(node.handle("turn", turn("in the second")))

    assert [first["answer"]["index"], second["answer"]["index"]] == [0, 0]
    assert texts(machine.disk.files["aside"]) == ["in the first life"]


def test_a_node_that_has_left_answers_for_nothing(machine: Machine) -> None:
    others = Others()
    node = Node("n1", others, machine.clock, machine.journal, machine.host, settings=ALONE)
    machine.does(node.begin())
    machine.does(node.handle("turn", turn("one")))

    machine.does(node.leave())

    assert others.asked["leave"] == 1
    with pytest.raises(LeaseLost):
        machine.does(node.handle("turn", turn("two")))


def test_a_turn_that_fails_when_nobody_listens_any_more_is_no_error_of_the_loop(
    machine: Machine,
) -> None:
    node = Node("n1", Others(), machine.clock, machine.journal, machine.host, settings=ALONE)
    machine.does(node.begin())
    unheard: list[Any] = []
    machine.loop.set_exception_handler(lambda _, context: unheard.append(context))

    async def leave() -> None:
        items = node.stream("turn", turn("one"))
        await anext(items)
        await items.aclose()  # type: ignore[attr-defined]
        await node.leave()
        await asyncio.sleep(SETTINGS.lease)

    machine.does(leave())
    gc.collect()

    assert unheard == []


def test_a_name_that_comes_back_under_another_lease_gives_nothing(machine: Machine) -> None:
    others = Others()
    node = Node("n1", others, machine.clock, machine.journal, machine.host, settings=SETTINGS)
    others.meanwhile = node.begin
    machine.does(node.begin())
    machine.does(node.handle("turn", turn("one")))
    others.meanwhile = None

    machine.does(node.handle("turn", turn("two")))

    assert others.asked["claim"] == 2


def test_a_copy_stays_while_its_owner_has_the_only_other_one(machine: Machine) -> None:
    machine.align(1, [])
    machine.replicate(1, 0, record("a"))
    others, notes = Others(), Notes(machine.journal)
    sweep = Sweep(
        "n1",
        others,
        machine.host,
        notes,
        Locks(),
        settings=SETTINGS,
        give_up=machine.host.end,
        untold=bool,
    )

    machine.does(sweep.round())
    assert machine.ledger() == ["a"]
    others.replica = "n3"
    machine.does(sweep.round())

    assert machine.ledger() == []
    assert texts(machine.disk.files["aside"]) == ["a"]


def test_a_large_store_is_listed_once_and_looked_at_in_several_rounds(machine: Machine) -> None:
    many = [f"a{number:04}" for number in range(2 * BATCHES * BATCH + 1)]
    machine.disk.files["ledgers"].update({agent: [record(agent)] for agent in many})
    others, rounds = Others(), list[tuple[int, int]]()
    listed: list[int] = []
    machine.disk.step = lambda _, what: listed.append(1) if what == "before stored" else None
    sweep = Sweep(
        "n1",
        others,
        machine.host,
        Notes(machine.journal),
        Locks(),
        settings=SETTINGS,
        give_up=machine.host.end,
        untold=bool,
    )

    for _ in range(4):
        asked = len(others.looked)
        machine.does(sweep.round())
        rounds.append((len(others.looked) - asked, len(listed)))

    most = BATCHES * BATCH
    assert rounds == [(most, 1), (most, 1), (1, 1), (most, 2)]
    assert others.looked[: len(many)] == many


@bug(ModelHost, "end")
def alice_cannot_be_stored(true: Any) -> Any:
    async def end(self: ModelHost, agent: str) -> None:
        if agent == "alice":
            raise OSError("no space left for what alice was told")
        await true(self, agent)

    return end


def test_an_agent_that_cannot_be_stored_stays_and_others_answer(machine: Machine) -> None:
    few = replace(ALONE, served=1)
    node = Node("n1", Others(), machine.clock, machine.journal, machine.host, settings=few)
    machine.does(node.begin())

    with seeded(alice_cannot_be_stored):
        for agent in ("alice", "bob", "carol", "alice"):
            given = machine.does(node.handle("turn", {**turn(f"to {agent}"), "agent": agent}))
            assert given["answer"]["text"] == f"to {agent}"
    assert machine.host.load()["bytes"] == 2**20


@bug(ModelHost, "records")
def reading_takes_a_lease(true: Any) -> Any:
    async def records(self: ModelHost, agent: str, start: int) -> Any:
        await asyncio.sleep(SETTINGS.lease)
        return await true(self, agent, start)

    return records


def test_what_is_read_while_the_lease_ends_is_not_shown(machine: Machine) -> None:
    node = Node("n1", Others(), machine.clock, machine.journal, machine.host, settings=ALONE)
    machine.does(node.begin())
    machine.does(node.handle("turn", turn("one")))

    with seeded(reading_takes_a_lease), pytest.raises(LeaseLost):
        machine.does(node.handle("read", {"agent": "alice", "start": 0}))


@bug(ModelHost, "begin")
def alice_cannot_begin(true: Any) -> Any:
    async def begin(self: ModelHost, agent: str, options: Record) -> None:
        await true(self, agent, options)
        if agent == "alice":
            raise InvalidConfig("what alice does with messages cannot be imported here")

    return begin


def test_an_agent_that_cannot_begin_does_not_stay_in_memory(machine: Machine) -> None:
    node = Node("n1", Others(), machine.clock, machine.journal, machine.host, settings=ALONE)
    machine.does(node.begin())

    with seeded(alice_cannot_begin), pytest.raises(InvalidConfig):
        machine.does(node.handle("turn", turn("one")))

    assert machine.host.load()["bytes"] == 0
