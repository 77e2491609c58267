"""A node whose disk refuses turns or has no room, and who is told of KV that was written."""

import asyncio
from collections.abc import Callable

import pytest
from hosts import LONG, asked, copied
from makers import OpenSystem

from kvactors.actors import SaveFailed
from kvactors.actors.cluster.host.host import SystemHost
from kvactors.actors.testing import FailingFiles
from kvactors.persistence.store.piece_copies import PIECE_BYTES

OpenHost = Callable[..., SystemHost]
WAIT = 60
# Of KV: for one agent of LONG, and not for two.
ROOM = 150_000


def test_a_turn_that_the_disk_refuses_fails_and_is_taken_once_when_it_is_asked_again(
    open_system: OpenSystem,
) -> None:
    disk = FailingFiles(name="append", path="*ledger.log")
    disk.armed = False
    host = SystemHost(open_system(disk=disk))

    async def talk() -> None:
        await host.begin("alice", {})
        await asked(host, "alice", [1], "r1")
        disk.armed = True
        for _ in range(2):
            with pytest.raises(SaveFailed):
                await asked(host, "alice", [2], "r2")
        with pytest.raises(SaveFailed):
            await host.records("alice", 0)
        disk.armed = False

        assert (await asked(host, "alice", [2], "r2"))["recorded"]
        assert len(await host.records("alice", 0)) == 2

    asyncio.run(talk())


def test_who_listens_is_told_of_kv_that_was_written_one_call_at_a_time(
    open_host: OpenHost,
) -> None:
    host = open_host("1")

    async def talk() -> None:
        gate, told, busy = asyncio.Event(), asyncio.Queue[str](), 0

        async def listen(agent: str) -> None:
            nonlocal busy
            busy += 1
            assert busy == 1
            await told.put(agent)
            await gate.wait()
            busy -= 1

        host.on_saved(listen)
        await host.begin("alice", {})
        await asked(host, "alice", LONG, "r1")
        first = await told.get()
        for n in range(3):
            await asked(host, "alice", [n + 1], f"more {n}")
        await host.end("alice")
        quiet = told.empty()
        gate.set()

        assert (first, quiet) == ("alice", True)
        assert await asyncio.wait_for(told.get(), WAIT) == "alice"

    asyncio.run(talk())


def test_a_served_agent_whose_kv_makes_room_for_a_replicas_is_saved_again_whole(
    open_host: OpenHost, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = open_host("1", piece_bytes=PIECE_BYTES), open_host("2", max_disk=ROOM)

    async def talk() -> None:
        written = asyncio.Queue[str]()
        two.on_saved(written.put)
        await two.begin("carol", {})
        await asked(two, "carol", LONG, "c1")
        await written.get()
        await one.begin("alice", {})
        await asked(one, "alice", LONG[::-1], "a1")
        assert await copied(one, two, "alice") == (1, 1)
        assert (await two.digests("carol"), len(await two.digests("alice"))) == ([], 2)

        await two.forget("alice")
        await asked(two, "carol", [5], "c2")

        assert await asyncio.wait_for(written.get(), WAIT) == "carol"
        assert len(await two.digests("carol")) == 2

    asyncio.run(talk())
    assert "saving 'carol' failed" not in caplog.text
