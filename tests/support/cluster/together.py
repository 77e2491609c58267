"""Real nodes of a cluster in one process, and all that passes between them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from kvactors import Cluster
from kvactors.actors.cluster.machine.clock import MonotonicClock
from kvactors.actors.cluster.machine.direct import DirectTransport
from kvactors.actors.cluster.machine.journal import FileJournal
from kvactors.actors.cluster.machine.link import Link
from kvactors.actors.cluster.machine.loop import LoopThread
from kvactors.actors.cluster.machine.seals import key_name
from kvactors.actors.cluster.member.member import Member, MemberOptions, open_member
from kvactors.actors.cluster.protocol.directory.server import Directory
from kvactors.actors.cluster.protocol.errors import ClusterError
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.actors.cluster.protocol.wire import pack

__all__ = ["LOOK", "Together"]

PATIENCE = 60.0
# Seconds: tests of circles wait for some looks.
LOOK = 0.1


class Tapped(DirectTransport):
    """`seen`: every record that passed, as it was packed."""

    def __init__(self) -> None:
        super().__init__({})
        self.seen: list[bytes] = []

    async def call(self, to: str, method: str, record: Any, **options: Any) -> dict[str, Any]:
        self.seen.append(pack(record))
        try:
            answer = await super().call(to, method, record, **options)
        except ClusterError as error:
            self.seen.append(pack(error.to_record()))
            raise
        self.seen.append(pack(answer))
        return answer

    async def stream(self, to: str, method: str, record: Any) -> AsyncIterator[dict[str, Any]]:
        self.seen.append(pack(record))
        async for item in super().stream(to, method, record):
            self.seen.append(pack(item))
            yield dict(item)


class Together:
    """Nodes by their names, with stores in `folder`, all with this `key`; turns are durable on two
    of them, and so many agents `served` by one at once. `cluster` has the key, too. `models`: of
    the nodes, by their names, where they are not the default one."""

    def __init__(
        self,
        folder: Path,
        *names: str,
        key: bytes | None = None,
        served: int = 10_000,
        models: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder, self.names = folder, names
        self._models = models or {}
        self.settings = Settings(key=key_name(key), served=served, lease=1.0, call=0.5, look=LOOK)
        self.transport = Tapped()
        self.loop = LoopThread("together")
        self._members: dict[str, Member] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self.loop.run(self._open(key))
        self.cluster = self.connect(key)

    def connect(self, key: bytes | None) -> Cluster:
        """Another client, with a key of its own."""
        thread = LoopThread("client")
        try:
            link = Link(thread, _Over(self), self.settings, PATIENCE, key)
        except BaseException:
            thread.stop()
            raise
        return Cluster(link, link.close)

    def lose(self, name: str) -> None:
        """The node's process is gone: nobody reaches it, and it reaches nobody."""
        self.loop.run(self._lose(name))

    def ended(self, name: str) -> BaseException | None:
        """What the node's process ends with, once it does."""
        return self.loop.run(self._ended(name))

    def close(self) -> None:
        self.cluster.close()
        self.loop.run(self._close())
        self.loop.stop()

    async def _open(self, key: bytes | None) -> None:
        journal = FileJournal(self.folder / "directory.journal", "directory")
        directory = Directory(self.transport, MonotonicClock(), journal, self.settings)
        self.transport.places["directory"] = directory
        self._running["directory"] = asyncio.create_task(directory.run())
        for name in self.names:
            model = self._models.get(name, "default")
            engine: dict[str, Any] = {"reproducible": True}
            options = MemberOptions(name, str(self.folder / name), model, engine)
            member = await open_member(options, self.settings, self.transport, key)
            self._members[name] = member
            self.transport.places[name] = member.node
            await member.node.begin()
            self._running[name] = asyncio.create_task(member.node.run())

    async def _ended(self, name: str) -> BaseException | None:
        running = self._running[name]
        await asyncio.wait([running], timeout=PATIENCE)
        return running.exception()

    async def _lose(self, name: str) -> None:
        del self.transport.places[name]
        self._running.pop(name).cancel()

    async def _close(self) -> None:
        for running in self._running.values():
            running.cancel()
        for member in self._members.values():
            await member.close()


class _Over:
    """The transport of the nodes' loop, for a client on another."""

    def __init__(self, together: Together) -> None:
        self._loop, self._transport = together.loop.loop, together.transport

    async def call(self, to: str, method: str, record: Any, **options: Any) -> Any:
        work = self._transport.call(to, method, record, **options)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def stream(self, to: str, method: str, record: Any) -> AsyncIterator[Any]:
        items = aiter(self._transport.stream(to, method, record))

        async def following() -> Any:
            return await anext(items, None)

        while True:
            item = await asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(following(), self._loop)
            )
            if item is None:
                return
            yield item
