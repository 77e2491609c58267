"""SystemHost: what it serves, refuses and tells."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conversations import chat_model
from hosts import LONG, SHORT, across, asked, copied, held, said
from makers import OpenSystem

from kvactors.actors import (
    DropOldest,
    InvalidConfig,
    InvalidInput,
    LanePolicy,
    SystemStopped,
)
from kvactors.actors.cluster.host.host import SystemHost
from kvactors.actors.cluster.host.requests import ask_request, observe_request, spawn_options
from kvactors.actors.cluster.protocol.errors import LedgerGap
from kvactors.actors.testing import FaultyModel

OpenHost = Callable[..., SystemHost]
WAIT = 60


def test_a_system_without_a_store_or_with_virtual_time_is_no_node(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    with pytest.raises(InvalidConfig, match="store=False"):
        SystemHost(open_system(store=False))
    with pytest.raises(InvalidConfig, match="deterministic"):
        SystemHost(open_system(store=tmp_path, deterministic=True))


def test_an_agent_is_begun_with_what_spawn_takes_and_again_as_it_is_stored(
    open_system: OpenSystem,
) -> None:
    system = open_system(chat_model)
    host = SystemHost(system)
    options = spawn_options(
        "You are Alice.", context_policy=DropOldest(3), prompt_lane=LanePolicy(capacity=7)
    )

    async def talk() -> None:
        for _ in range(2):
            await host.begin("alice", across(options))
        await asked(host, "alice", "hello", "r1")
        alice = system.find("alice")
        await host.end("alice")
        await host.end("alice")
        gone = system.find("alice")
        await host.begin("alice", spawn_options("You are somebody else."))
        again = system.find("alice")

        assert alice is not None
        assert alice.system_prompt == "You are Alice."
        assert gone is None
        assert again is not None
        assert again.system_prompt == "You are Alice."
        assert len(again.transcript().turns) == 2

    asyncio.run(talk())


def test_what_is_served_is_not_written_below_and_what_is_not_takes_no_turn(
    open_host: OpenHost,
) -> None:
    host = open_host("1")

    async def talk() -> None:
        with pytest.raises(InvalidInput, match="begin it first"):
            await asked(host, "alice", [1], "r1")
        await host.begin("alice", {})
        await asked(host, "alice", [1], "r1")
        records = await host.records("alice", 0)
        store, piece = host.store("alice", 1, records), host.store_piece("alice", {})
        for write in (store, piece, host.set_aside("alice", 0)):
            with pytest.raises(InvalidInput, match="served here"):
                await write
        assert await host.records("alice", 0) == records

    asyncio.run(talk())


def test_a_gap_says_how_many_records_there_are(open_host: OpenHost) -> None:
    one, two = open_host("1"), open_host("2")

    async def talk() -> None:
        await one.begin("alice", {})
        for n in range(3):
            await asked(one, "alice", [n + 1], f"r{n}")
        records = await one.records("alice", 0)
        assert await two.store("alice", 0, records[:1]) == 1
        with pytest.raises(LedgerGap) as gap:
            await two.store("alice", 2, records[2:])
        assert gap.value.fields == {"agent": "alice", "have": 1}
        assert await two.store("alice", 1, records[1:]) == 3

    asyncio.run(talk())


def test_a_node_that_returns_sets_its_tail_aside_and_is_a_replica_again(
    open_host: OpenHost, tmp_path: Path
) -> None:
    old, new = open_host("old"), open_host("new")

    async def talk() -> None:
        await old.begin("alice", {})
        await asked(old, "alice", LONG, "r1")
        await copied(old, new, "alice")
        await asked(old, "alice", [9], "lost")
        await new.begin("alice", {})
        answer = await asked(new, "alice", [5], "r2")

        await old.end("alice")
        await old.set_aside("alice", 1)
        await copied(new, old, "alice")
        await old.begin("alice", {})
        again = await asked(old, "alice", [5], "r2")

        assert said(again) == said(answer)
        assert await old.records("alice", 0) == await new.records("alice", 0)
        assert not await old.knows("alice", "lost")
        assert len(list((tmp_path / "old" / "aside").rglob("ledger.log"))) == 1

    asyncio.run(talk())


def test_tokens_come_as_they_are_decoded_and_are_the_answers(open_host: OpenHost) -> None:
    host = open_host("1", chat_model)

    async def talk() -> None:
        told: list[Any] = []
        await host.begin("alice", {})
        request = across(ask_request("hello", request_id="r1", sampling=SHORT))

        answer = await host.turn("alice", request, told.append)

        begun, *pieces = told
        assert begun == {"begun": [answer["usage"]["prompt_tokens"], 0]}
        assert "".join(piece["text"] for piece in pieces) == answer["text"]
        assert [token for piece in pieces for token in piece["tokens"]] == answer["tokens"]

    asyncio.run(talk())


@pytest.mark.parametrize("streamed", [False, True])
def test_a_turn_goes_on_whose_caller_is_cancelled(open_host: OpenHost, *, streamed: bool) -> None:
    model = FaultyModel()
    host = open_host("1", model)

    async def talk() -> None:
        await host.begin("alice", {})
        task, gate = await held(host, model, streamed=streamed)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()

        again = await asked(host, "alice", [1, 2], "r1")

        assert again["recorded"]
        assert again["finish"] == "length"
        assert len(again["tokens"]) == SHORT.max_tokens

    asyncio.run(talk())


def test_what_is_observed_is_in_the_ledger_once(open_host: OpenHost) -> None:
    host = open_host("1", chat_model)

    async def talk() -> None:
        await host.begin("alice", {})
        for _ in range(2):
            await host.turn("alice", across(observe_request("o", "a fact")), None)
        await host.end("alice")

        assert await host.stored() == {"alice": 1}
        assert [await host.knows("alice", name) for name in "ox"] == [True, False]

    asyncio.run(talk())


def test_a_forgotten_agent_is_gone_and_forgetting_it_again_is_nothing(
    open_host: OpenHost,
) -> None:
    host = open_host("1")

    async def talk() -> None:
        await host.begin("alice", {})
        await asked(host, "alice", LONG, "r1")
        held = host.load()
        # A turn counts until what it said is saved.
        async with asyncio.timeout(WAIT):
            while host.load()["waiting"]:
                await asyncio.sleep(0.01)
        for _ in range(2):
            await host.forget("alice")

        assert held["budget"] > held["bytes"] > 0
        assert (await host.stored(), await host.digests("alice")) == ({}, [])
        assert await host.records("alice", 0) == []

    asyncio.run(talk())


def test_the_host_of_a_stopped_system_says_so(open_system: OpenSystem) -> None:
    system: Any = open_system()
    host = SystemHost(system)
    system.stop(timeout=WAIT)

    async def talk() -> None:
        with pytest.raises(SystemStopped):
            await host.stored()
        with pytest.raises(SystemStopped):
            await host.begin("alice", {})

    asyncio.run(talk())
