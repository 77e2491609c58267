"""What all handles of a cluster have in common: a loop, a client of the protocol, and patience."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from kvactors.actors.cluster.machine.clock import MonotonicClock
from kvactors.actors.cluster.machine.known import as_known
from kvactors.actors.cluster.machine.loop import OtherLoop, check_may_wait, refuse
from kvactors.actors.cluster.machine.posting import Posting
from kvactors.actors.cluster.machine.sealed_client import open_client, open_words
from kvactors.actors.cluster.protocol.errors import HostFailed
from kvactors.actors.cluster.protocol.interfaces import Transport
from kvactors.actors.cluster.protocol.outbox import Outbox, Permit, anybody
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.persistence.files.encryption import EncryptionKey

__all__ = ["PATIENCE", "Link"]

PATIENCE = 60.0
"""Seconds for which a lost owner, or the directory, is waited for."""

LONGEST = 4
"""Leases between two looks, at most, at whether a turn is on a second node by now."""

T = TypeVar("T")


class Link:
    """`loop` runs the calls of `client`, over a `transport`, in a cluster of these `settings`; one
    that finds no owner is tried again for `seconds`. `key`: the one that nodes have, if any.
    `permit` says which messages may be sent."""

    def __init__(
        self,
        loop: OtherLoop,
        transport: Transport,
        settings: Settings,
        seconds: float,
        key: EncryptionKey | None = None,
        permit: Permit = anybody,
    ) -> None:
        """Raises InvalidConfig for another `key` than that of the nodes."""
        self.loop = loop
        self.settings = settings
        self.seconds = seconds
        clock = MonotonicClock()
        self.client = open_client(transport, clock, settings, key)
        outbox = Outbox(transport, self.client, clock, settings, seconds, permit)
        self.posting = Posting(loop.loop, outbox, open_words(settings, key))
        self._orders: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._asked: dict[str, dict[str, None]] = {}
        self._ending: set[asyncio.Task[Any]] = set()
        self.closed = False

    def order(self, agent_id: str) -> asyncio.Lock:
        """What the turns of an agent wait for, one by one, in the order in which they are asked."""
        return self._orders.setdefault(agent_id, asyncio.Lock())

    @contextmanager
    def asking(self, agent_id: str, request: str) -> Iterator[None]:
        """Meanwhile an agent owes an answer to this request of this process. On the loop."""
        asked = self._asked.setdefault(agent_id, {})
        asked[request] = None
        try:
            yield
        finally:
            asked.pop(request, None)
            if not asked:
                self._asked.pop(agent_id, None)

    async def fork(self, agent_id: str, child: str, request: str) -> None:
        """Let `child` begin with what `agent_id` remembers behind the turns that it was asked for
        so far, once for a `request`."""
        async with self.order(agent_id):
            await self.client.fork(agent_id, child, request, self.seconds)

    async def first(self, agent_id: str) -> str | None:
        """The request whose turn runs, else the first of this process that has no answer."""
        asked = list(self._asked.get(agent_id, ()))
        return await self.client.running(agent_id, self.seconds) or next(iter(asked), None)

    async def cancel(self, agent_id: str, request: str) -> dict[str, Any]:
        """End the turn of a request, or see to it that there is none: what `Client.turn` gives."""
        task = asyncio.current_task()
        assert task is not None
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return await self.client.cancel(agent_id, request, self.seconds)

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
        check_may_wait(work)
        return self.loop.run(_known(work))

    def pause(self, seconds: float) -> None:
        """Wait so long."""
        self.run(asyncio.sleep(seconds))

    def close(self) -> None:
        """Take no more. Twice is as good as once."""
        if not self.closed:
            self.finish()
            self.closed = True
            self.loop.stop()

    def finish(self) -> None:
        """Return when the turns that were left have ended, or their nodes take too long; no message
        is waited for."""
        self.loop.run(self._ended())

    async def _ended(self) -> None:
        self.posting.close()
        if self._ending:
            await asyncio.wait(self._ending, timeout=self.settings.call)

    async def durable(self, agent_id: str, request: str) -> bool:
        """Return when a turn is on as many nodes as it should be."""
        pause = self.settings.lease / 4
        while not await self.client.confirm(agent_id, request, self.seconds):
            await asyncio.sleep(pause)
            # The second node may be away for an hour.
            pause = min(2 * pause, LONGEST * self.settings.lease)
        return True

    async def cached(self, agent_id: str, request: str) -> bool:
        """Whether a turn's KV is on disk where the agent lives: once that is known."""
        return await self.client.cached(agent_id, request, self.seconds)

    def _require_open(self, work: Coroutine[Any, Any, Any]) -> None:
        if self.closed:
            refuse(work)


async def _known(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except HostFailed as error:
        raise as_known(error) from error
