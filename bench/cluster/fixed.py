"""A node whose turns take a fixed time: what is measured is the cluster around it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from typing import Any

import msgpack  # type: ignore[import-untyped]

from kvactors.actors import Reply
from kvactors.actors.cluster.host.answers import reply_record
from kvactors.actors.cluster.machine.clock import MonotonicClock
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.node.server import Node
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.actors.cluster.ray.boot import start_actor
from kvactors.actors.cluster.ray.raylet import NODE
from kvactors.actors.cluster.ray.shell import Shell
from kvactors.actors.cluster.ray.transport import RayTransport
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.reply import Timing, Usage
from kvactors.bench.cluster.directory import Unwritten

__all__ = ["PLACES", "STEP", "start_fixed"]

STEP = 0.2
"""Seconds of a turn."""
PLACES = 4
"""Turns of a node at once: so many in each step."""


class FixedHost:
    """A Host whose agents are names, in memory. One loop."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(PLACES)
        self._taken: dict[str, list[str]] = {}
        future = ReplyFuture[bool]()
        future.resolve(True)
        reply = Reply(
            text="",
            token_ids=(1,),
            finish_reason="length",
            cache="hot",
            match=None,
            usage=Usage(1, 0, 1, 1, 0),
            timing=Timing(0.0, 0.0, 0.0, STEP, STEP),
            durable=future,
            cached=future,
        )
        self._answer = reply_record(reply)

    async def turn(self, agent: str, request: Record, tell: object) -> Record:
        """The same answer to each `request` of an `agent`; `tell` is told nothing."""
        async with self._places:
            await asyncio.sleep(STEP)
        self._taken.setdefault(agent, []).append(request["id"])
        return self._answer

    async def begin(self, agent: str, options: Record) -> None:
        """Nothing is to be done."""

    async def end(self, agent: str) -> None:
        """Nothing is to be done."""

    async def stored(self) -> dict[str, int]:
        """Nothing that others should have."""
        return {}

    async def records(self, agent: str, start: int) -> list[bytes]:
        """Names of requests."""
        return [name.encode() for name in self._taken.get(agent, ())[start:]]

    async def cancel(self, agent: str) -> None:
        """A step is short."""

    async def fork(self, agent: str, child: str) -> None:
        """All names."""
        self._taken.setdefault(child, list(self._taken.get(agent, ())))

    async def store(
        self, agent: str, start: int, records: list[bytes], of: str | None = None
    ) -> int:
        """In memory: those of `records` of `agent`, from the `start`-th on, that are new; whoever
        they are `of`."""
        held = self._taken.setdefault(agent, [])
        held += [name.decode() for name in records[len(held) - start :]]
        return len(held)

    async def set_aside(self, agent: str, keep: int) -> None:
        """Nobody looks for it."""
        del self._taken.get(agent, [])[keep:]

    async def pieces(self, agent: str, have: list[str]) -> AsyncIterator[Record]:
        """None."""
        for piece in list[Record]():
            yield piece

    async def digests(self, agent: str) -> list[str]:
        """None."""
        return []

    async def store_piece(self, agent: str, piece: Record) -> None:
        """There are none."""

    async def forget(self, agent: str) -> None:
        """At once."""
        self._taken.pop(agent, None)

    async def knows(self, agent: str, request: str) -> bool:
        """By its id."""
        return request in self._taken.get(agent, ())

    async def cached(self, agent: str, request: str) -> bool:
        """There is no KV."""
        return False

    def load(self) -> Record:
        """Nothing but agents."""
        return {"bytes": 0, "waiting": 0, "budget": 2**30}

    def check(self) -> None:
        """Nothing here can die."""

    def on_saved(self, listener: Callable[[str], Awaitable[None]]) -> None:
        """It never is."""


class FixedActor(Shell):
    """Holds such a node."""

    def __init__(self, name: str, settings: bytes) -> None:
        self._name, self._settings = name, Settings(**msgpack.unpackb(settings))
        super().__init__()

    async def begin(self) -> Any:
        """Join."""
        journal, host = Unwritten(), FixedHost()
        node = Node(
            self._name, RayTransport(), MonotonicClock(), journal, host, settings=self._settings
        )
        await node.begin()
        self.keep(node.run())
        return node


def start_fixed(name: str, beside: str, settings: Settings) -> Any:
    """A node called `name`, with the `settings` of its cluster, in a process on the raylet of the
    node `beside`; its actor, once it has joined."""
    packed = msgpack.packb(asdict(settings))
    return start_actor(FixedActor, name, f"{NODE}{beside}", name, packed)
