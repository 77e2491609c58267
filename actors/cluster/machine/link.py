"""What all handles of a cluster have in common: a loop, a client of the protocol, and patience."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from kvactors.actors.cluster.machine.clock import MonotonicClock
from kvactors.actors.cluster.machine.known import as_known
from kvactors.actors.cluster.machine.loop import LoopThread
from kvactors.actors.cluster.machine.sealed_client import open_client
from kvactors.actors.cluster.protocol.errors import HostFailed
from kvactors.actors.cluster.protocol.interfaces import Transport
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.core.errors import SystemStopped
from kvactors.persistence.files.encryption import EncryptionKey

__all__ = ["Link"]

T = TypeVar("T")


class Link:
    """`loop` runs the calls of `client`, over a `transport`, in a cluster of these `settings`; one
    that finds no owner is tried again for `seconds`. `key`: the one that nodes have, if any."""

    def __init__(
        self,
        loop: LoopThread,
        transport: Transport,
        settings: Settings,
        seconds: float,
        key: EncryptionKey | None = None,
    ) -> None:
        """Raises InvalidConfig for another `key` than that of the nodes."""
        self.loop = loop
        self.settings = settings
        self.seconds = seconds
        self.client = open_client(transport, MonotonicClock(), settings, key)
        self._orders: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.closed = False

    def order(self, agent_id: str) -> asyncio.Lock:
        """What the turns of an agent wait for, one by one, in the order in which they are asked."""
        return self._orders.setdefault(agent_id, asyncio.Lock())

    def patience(self, request: dict[str, Any]) -> float:
        """Seconds for which a request is tried."""
        return self.seconds if request.get("timeout") is None else float(request["timeout"])

    def begin(self, work: Coroutine[Any, Any, T]) -> ReplyFuture[T]:
        """A future of it. Raises SystemStopped."""
        self._require_open(work)
        return self.loop.begin(_known(work)).future

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for it. Raises SystemStopped, BlockingCall, and what it raises."""
        self._require_open(work)
        return self.loop.run(_known(work))

    def pause(self, seconds: float) -> None:
        """Wait so long."""
        self.run(asyncio.sleep(seconds))

    def close(self) -> None:
        """Take no more. Twice is as good as once."""
        if not self.closed:
            self.closed = True
            self.loop.stop()

    async def durable(self, agent_id: str, request: str) -> bool:
        """Return when a turn is on as many nodes as it should be."""
        while not await self.client.confirm(agent_id, request, self.seconds):
            await asyncio.sleep(self.settings.lease / 4)
        return True

    async def cached(self, agent_id: str, request: str) -> bool:
        """Whether a turn's KV is on disk where the agent lives: once that is known."""
        return await self.client.cached(agent_id, request, self.seconds)

    def _require_open(self, work: Coroutine[Any, Any, Any]) -> None:
        if self.closed:
            work.close()
            raise SystemStopped("this cluster was left: connect again")


async def _known(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except HostFailed as error:
        raise as_known(error) from error
