"""What waits goes together; what may have been taken is never sent again."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from machine import SETTINGS

from kvactors.actors.cluster.machine.clock import MonotonicClock
from kvactors.actors.cluster.protocol.client import Client
from kvactors.actors.cluster.protocol.errors import (
    AgentBusy,
    AgentMoving,
    ClusterError,
    LeaseLost,
    UnknownAgent,
    Unreachable,
)
from kvactors.actors.cluster.protocol.interfaces import Letter, Record
from kvactors.actors.cluster.protocol.outbox import MOST, Outbox, Outgoing, Permit, anybody

Said = tuple[bytes | None, Exception | None]


class Nodes:
    """What nodes answer to messages, in turn, and where all agents live. `got` are the messages
    that came, by node, call by call."""

    def __init__(self) -> None:
        self.owner = "one"
        self.got: list[tuple[str, list[bytes]]] = []
        self.headings: list[Record] = []
        self.asked = Counter[str]()
        self.answers: list[Callable[[Record], Awaitable[Record]]] = []
        self.silent: list[ClusterError] = []
        self.later: list[Record | ClusterError] = []

    async def call(
        self, to: str, method: str, record: Record, *, within: float | None = None
    ) -> Record:
        self.asked[method] += 1
        if method == "find":
            if record["agent"] == "nobody":
                raise UnknownAgent(agent="nobody")
            return {"node": self.owner, "epoch": 1}
        if method == "running":
            if self.silent:
                raise self.silent.pop()
            return {"request": None}
        self.headings.append(record)
        self.got.append((to, [body for *_, mail in record["mail"] for _, body, *_ in mail]))
        return await (self.answers.pop(0) if self.answers else taken)(record)

    async def stream(self, to: str, method: str, record: Record) -> AsyncIterator[Record]:
        yield await self.call(to, method, record)
        for item in self.later:
            if isinstance(item, ClusterError):
                raise item
            yield item


async def taken(record: Record) -> Record:
    """All of it."""
    return {"groups": [[len(mail), None] for *_, mail in record["mail"]], "refused": []}


async def lost(record: Record) -> Record:
    """Nobody knows."""
    raise Unreachable(to="one", method="mail")


class Sender:
    """An outbox before `nodes`, and what became of the messages, by what they said."""

    def __init__(self, nodes: Nodes, permit: Permit = anybody, seconds: float = 5.0) -> None:
        clock = MonotonicClock()
        client = Client(nodes, clock, SETTINGS)
        self.outbox = Outbox(nodes, client, clock, SETTINGS, seconds, permit)
        self.said: dict[bytes, list[Said]] = {}

    def post(self, *bodies: bytes, to: str = "alice", asks: bool = False) -> None:
        for body in bodies:
            said = self.said.setdefault(body, [])
            letter = Letter("bob", body, asks, None)
            self.outbox.post(Outgoing(to, letter, lambda *end, said=said: said.append(end)))

    async def ended(self, *bodies: bytes) -> list[Any]:
        """How each ended: once."""
        async with asyncio.timeout(20):
            while not all(self.said[body] for body in bodies):
                await asyncio.sleep(0.005)
        assert all(len(said) == 1 for said in self.said.values() if said)
        return [self.said[body][0] for body in bodies]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_what_waits_while_a_call_is_under_way_goes_in_the_next() -> None:
    async def run() -> None:
        nodes, go = Nodes(), asyncio.Event()
        sender = Sender(nodes)

        async def held(record: Record) -> Record:
            await go.wait()
            return await taken(record)

        nodes.answers = [held]
        sender.post(b"first")
        while not nodes.got:
            await asyncio.sleep(0.001)
        sender.post(*numbers(100))
        go.set()
        assert set(await sender.ended(b"first", *numbers(100))) == {(None, None)}
        assert nodes.got == [("one", [b"first"]), ("one", numbers(100))]

    asyncio.run(run())


def test_what_a_moving_agent_did_not_take_follows_it_in_order() -> None:
    async def run() -> None:
        nodes = Nodes()
        sender = Sender(nodes)

        async def moving(_record: Record) -> Record:
            nodes.owner = "two"
            error = AgentMoving(agent="alice").to_record()
            return {"groups": [[2, error]], "refused": []}

        nodes.answers = [moving]
        sender.post(*numbers(5))
        assert set(await sender.ended(*numbers(5))) == {(None, None)}
        assert nodes.got == [("one", numbers(5)), ("two", numbers(5)[2:])]

    asyncio.run(run())


def test_what_was_under_way_to_a_lost_node_is_not_sent_again_and_what_is_behind_it_is() -> None:
    async def run() -> None:
        nodes = Nodes()
        sender = Sender(nodes)

        async def loses(record: Record) -> Record:
            nodes.owner = "two"
            sender.post(b"behind")
            return await lost(record)

        nodes.answers = [loses]
        sender.post(*numbers(3))
        for _, error in await sender.ended(*numbers(3)):
            assert type(error).__name__ == "Undelivered"
        sender.post(b"later")
        assert await sender.ended(b"behind", b"later") == [(None, None)] * 2
        heard = [body for _, bodies in nodes.got for body in bodies]
        assert heard == [*numbers(3), b"behind", b"later"]

    asyncio.run(run())


def test_a_node_that_was_not_heard_of_is_asked_before_anything_is_sent_there() -> None:
    async def run() -> None:
        nodes = Nodes()
        nodes.silent = [Unreachable(to="one", method="running") for _ in range(2)]
        sender = Sender(nodes)

        sender.post(b"safe")
        assert await sender.ended(b"safe") == [(None, None)]
        assert nodes.got == [("one", [b"safe"])]
        assert nodes.asked["running"] == 3

    asyncio.run(run())


def test_nothing_leaves_a_node_that_has_no_lease() -> None:
    async def run() -> None:
        nodes, leases = Nodes(), [False, False, True]

        def may() -> bool:
            if not (leases.pop(0) if leases else True):
                raise LeaseLost(node="here")
            return True

        sender = Sender(nodes, lambda *_: may)
        sender.post(b"fenced")
        assert await sender.ended(b"fenced") == [(None, None)]
        assert len(nodes.got) == 1

    asyncio.run(run())


def test_what_its_sender_may_not_say_any_more_ends_unsent_and_what_is_behind_it_goes() -> None:
    async def run() -> None:
        nodes, looks = Nodes(), iter([True, False, True])
        sender = Sender(nodes, lambda *_: lambda: next(looks))

        sender.post(b"first", b"old", b"last")

        first, (_, error), last = await sender.ended(b"first", b"old", b"last")
        assert (first, last) == ((None, None), (None, None))
        assert type(error).__name__ == "Undelivered"
        assert nodes.got == [("one", [b"first", b"last"])]

    asyncio.run(run())


def test_a_mailbox_that_stays_full_is_named_as_the_reason() -> None:
    async def run() -> None:
        nodes = Nodes()
        sender = Sender(nodes, seconds=0.1)

        async def full(record: Record) -> Record:
            error = AgentBusy(agent="alice").to_record()
            return {"groups": [[0, error]], "refused": []}

        nodes.answers = [full] * 100
        sender.post(b"one", b"two")

        for _, error in await sender.ended(b"one", b"two"):
            assert type(error).__name__ == "MailboxFull"

    asyncio.run(run())


def test_each_call_has_a_number_of_its_own_and_the_epoch_of_its_receivers_owner() -> None:
    async def run() -> None:
        nodes = Nodes()
        sender = Sender(nodes)
        for body in numbers(2):
            sender.post(body)
            await sender.ended(body)

        first, second = nodes.headings
        assert first["from"] == second["from"]
        assert first["number"] < second["number"]
        assert [epoch for _, epoch, _ in second["mail"]] == [1]

    asyncio.run(run())


@pytest.mark.parametrize("end", ["broken", "lost", "over"])
def test_who_asked_is_answered_or_told_that_nobody_will(end: str) -> None:
    async def run() -> None:
        nodes = Nodes()
        nodes.later = [{"answers": [[1, b"yes"]], "lost": [0] if end == "lost" else []}]
        nodes.later += [Unreachable(to="one", method="mail")] if end == "broken" else []
        sender = Sender(nodes)

        sender.post(b"one", b"two", asks=True)

        (_, error), answer = await sender.ended(b"one", b"two")
        assert answer == (b"yes", None)
        assert type(error).__name__ == "Unanswered"

    asyncio.run(run())


def test_a_message_for_nobody_ends_and_so_do_those_behind_it() -> None:
    async def run() -> None:
        sender = Sender(Nodes())
        sender.post(*numbers(3), to="nobody")
        for _, error in await sender.ended(*numbers(3)):
            assert isinstance(error, UnknownAgent)

    asyncio.run(run())


def test_more_than_may_wait_are_refused_and_a_closed_outbox_ends_all() -> None:
    async def run() -> None:
        sender = Sender(Nodes())
        sender.post(*numbers(MOST + 1))
        refused = sender.said[b"%d" % MOST]
        assert [type(error).__name__ for _, error in refused] == ["MailboxFull"]
        gone = RuntimeError("closed")
        sender.outbox.close(gone)
        assert await sender.ended(*numbers(MOST)) == [(None, gone)] * MOST
        sender.post(b"after")
        assert sender.said[b"after"] == [(None, gone)]

    asyncio.run(run())


def test_who_waits_for_an_answer_hears_of_an_end_that_comes_at_once() -> None:
    async def run() -> None:
        nodes = Nodes()
        sender = Sender(nodes)

        async def left(record: Record) -> Record:
            # Before anybody reads what comes behind this.
            asyncio.get_running_loop().call_soon(sender.outbox.close, RuntimeError("left"))
            return await taken(record)

        nodes.answers = [left]
        sender.post(b"asked", asks=True)
        ((_, error),) = await sender.ended(b"asked")
        assert type(error).__name__ == "Unanswered"

    asyncio.run(run())
