"""Whether a turn's KV is on disk: its node says so, and the one that has its copy."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from conversations import chat_model
from hosts import LONG, asked

from kvactors.actors.cluster.host.host import SystemHost
from kvactors.actors.cluster.host.saved import SavedKV
from kvactors.actors.runtime.futures import ReplyFuture

OpenHost = Callable[..., SystemHost]


def test_a_turn_is_cached_when_its_kv_is_on_disk(open_host: OpenHost) -> None:
    host = open_host("1", chat_model)

    async def talk() -> None:
        await host.begin("alice", {})
        await asked(host, "alice", LONG, "r1")

        assert await host.cached("alice", "r1")
        assert await host.digests("alice")
        assert not await host.cached("alice", "r2")
        assert not await host.cached("bob", "r1")

    asyncio.run(talk())


def test_a_copy_is_cached_as_far_as_its_kv_has_come(open_host: OpenHost) -> None:
    one, two = open_host("1", chat_model), open_host("2", chat_model)

    async def talk() -> None:
        await one.begin("alice", {})
        await asked(one, "alice", LONG, "r1")
        assert await one.cached("alice", "r1")
        await asked(one, "alice", LONG, "r2")
        assert await one.cached("alice", "r2")
        await one.end("alice")

        await two.store("alice", 0, await one.records("alice", 0))
        assert not await two.cached("alice", "r1")
        seen = []
        async for piece in one.pieces("alice", []):
            await two.store_piece("alice", piece)
            seen.append([await two.cached("alice", request) for request in ("r1", "r2")])
        assert (seen[0], seen[-1]) == ([True, False], [True, True])

    asyncio.run(talk())


def test_where_nobody_listens_no_task_is_begun_which_a_loop_that_ends_would_drop() -> None:
    saved, turn, cached = SavedKV(), ReplyFuture[Any](), ReplyFuture[bool]()
    cached.resolve(True)
    turn.resolve(SimpleNamespace(cached=cached))

    async def tasks() -> int:
        saved.follow("alice", "r1", turn)
        assert await saved.cached("alice", "r1")
        await asyncio.sleep(0)  # What was called soon has been called.
        assert await saved.cached("alice", "r1") is None
        return len(asyncio.all_tasks())

    assert asyncio.run(tasks()) == 1
