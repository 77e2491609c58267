"""What a host does for forks, rewinds and turns that end early."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from conversations import chat_model
from hosts import LONG, SHORT, across, asked, held

from kvactors.actors import InvalidInput
from kvactors.actors.cluster.host.host import SystemHost
from kvactors.actors.cluster.host.requests import rewind_request
from kvactors.actors.testing import FaultyModel

OpenHost = Callable[..., SystemHost]


async def does(host: SystemHost, request: dict[str, Any]) -> dict[str, Any]:
    return across(await host.turn("alice", across(request), None))


def test_a_fork_is_made_once_and_then_is_what_its_ledger_says(open_host: OpenHost) -> None:
    host = open_host("1")

    async def talk() -> None:
        await host.begin("alice", {})
        await asked(host, "alice", LONG, "r1")
        await host.fork("alice", "bob")
        await asked(host, "bob", [1], "r2")
        await asked(host, "alice", [3], "r3")
        await host.fork("alice", "bob")
        await host.end("bob")
        await host.fork("alice", "bob")
        await host.begin("bob", {})

        reply = await asked(host, "bob", [2], "r4")

        assert reply["cache"] == "warm"
        assert await host.stored() == {"alice": 2, "bob": 3}

    asyncio.run(talk())


@pytest.mark.parametrize("key", [None, b"k" * 32], ids=["plain", "encrypted"])
def test_a_fork_that_is_made_of_records_is_the_one_that_is_made_of_memory(
    open_host: OpenHost, key: bytes | None
) -> None:
    one, two = (open_host(name, chat_model, encryption_key=key) for name in ("1", "2"))

    async def talk() -> None:
        await one.begin("alice", {})
        await asked(one, "alice", "hello", "r1")
        await asked(one, "alice", "and on", "r2")
        await does(one, rewind_request("back"))
        await one.fork("alice", "bob")
        records = across({"records": await one.records("alice", 0)})["records"]
        assert await two.store("bob", 0, records[:1], "alice") == 1
        assert await two.store("bob", 1, records[1:], "alice") == 3
        await two.begin("bob", {})

        assert await one.records("bob", 0) == await two.records("bob", 0)
        replies = [await asked(host, "bob", "now what?", "r3") for host in (one, two)]
        assert replies[0]["tokens"] == replies[1]["tokens"]

    asyncio.run(talk())


def test_a_rewind_crosses_and_is_done_once(open_host: OpenHost) -> None:
    host = open_host("1", chat_model)

    async def talk() -> None:
        await host.begin("alice", {})
        for n in range(3):
            await asked(host, "alice", f"turn {n}", f"r{n}")

        found = [await does(host, rewind_request("back", 2)) for _ in range(2)]
        to_token = await does(host, rewind_request("further", to_token=0))

        assert [rewound["turns"] for rewound in found] == [2, 2]
        assert to_token == {"turns": 0, "tokens": 0}
        assert await host.stored() == {"alice": 5}

    asyncio.run(talk())


@pytest.mark.parametrize("streamed", [False, True])
def test_a_turn_that_is_cancelled_ends_with_what_it_has_said(
    open_host: OpenHost, *, streamed: bool
) -> None:
    model = FaultyModel()
    host = open_host("1", model)

    async def talk() -> None:
        await host.begin("alice", {})
        task, gate = await held(host, model, streamed=streamed)
        await host.cancel("alice")
        gate.set()

        ended = await task

        assert ended["finish"] == "cancelled"
        assert len(ended["tokens"]) < SHORT.max_tokens
        again = await does(host, {"id": "r1", "kind": "withdraw"})
        assert (again["tokens"], again["finish"]) == (ended["tokens"], "cancelled")
        assert await host.stored() == {"alice": 1}

    asyncio.run(talk())


def test_a_withdrawn_request_is_in_the_ledger_and_not_taken(open_host: OpenHost) -> None:
    host = open_host("1", chat_model)

    async def talk() -> None:
        await host.begin("alice", {})
        for _ in range(2):
            found = await does(host, {"id": "r1", "kind": "withdraw"})
            assert (found["text"], found["finish"]) == ("", "cancelled")
        assert (await asked(host, "alice", "hello", "r1"))["recorded"]
        assert await host.stored() == {"alice": 1}
        assert await host.knows("alice", "r1")
        with pytest.raises(InvalidInput, match="begin it first"):
            await host.cancel("bob")

    asyncio.run(talk())
