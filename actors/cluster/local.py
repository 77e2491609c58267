"""A cluster of one process: the same directory and the same node, without Ray. Both on
a thread of their own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from kvactors.actors.cluster.machine.clock import MonotonicClock
from kvactors.actors.cluster.machine.direct import DirectTransport
from kvactors.actors.cluster.machine.journal import FileJournal
from kvactors.actors.cluster.machine.link import Link
from kvactors.actors.cluster.machine.loop import LoopThread
from kvactors.actors.cluster.machine.seals import key_name
from kvactors.actors.cluster.member.member import FOLDER, Member, MemberOptions, open_member
from kvactors.actors.cluster.protocol.directory.server import Directory
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.actors.system.parameters import store_path
from kvactors.core.errors import InvalidConfig
from kvactors.persistence.files.encryption import EncryptionKey

__all__ = ["open_local"]

NAME = "here"


def open_local(
    model: str,
    store: str | Path | None,
    engine: dict[str, Any],
    seconds: float,
    key: EncryptionKey | None = None,
) -> tuple[Link, Callable[[], None]]:
    """What handles need of a cluster of one node, over a `model`, a `store`, the `key` of that if
    it has one, and `engine`, what else AgentSystem takes; calls are tried for `seconds`. And what
    ends it."""
    path = store_path(store)
    if path is None:
        raise InvalidConfig("a cluster keeps its agents: store must be a directory")
    local = _Local(MemberOptions(NAME, str(path), model, engine), key)
    loop = LoopThread("kvactors-cluster")
    link = Link(loop, local.transport, local.settings, seconds, key)
    try:
        loop.run(local.open())
    except BaseException:
        loop.stop()
        raise

    def leave() -> None:
        if not link.closed:
            link.finish()
            loop.run(local.close())
            link.close()

    return link, leave


class _Local:
    """The directory and the node. One loop."""

    def __init__(self, options: MemberOptions, key: EncryptionKey | None) -> None:
        self.settings = Settings(durable="one", key=key_name(key), model=str(options.model))
        self._key = key
        self.transport = DirectTransport({})
        self._options = options
        self._running: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        opening = open_member(self._options, self.settings, self.transport, self._key)
        self._member: Member = await opening
        try:
            self._run()
        except BaseException:
            await self.close()
            raise

    def _run(self) -> None:
        journal = FileJournal(Path(self._options.store) / FOLDER / "directory.journal", "directory")
        self.transport.places[NAME] = self._member.node
        loop = asyncio.get_running_loop()
        works = self._direct(self._directory(journal), journal), self._member.node.run()
        self._running = [loop.create_task(work) for work in works]
        for running in self._running:
            running.add_done_callback(self._ended)

    def _directory(self, journal: FileJournal) -> Directory:
        """One that knows what a `journal` does, and is asked from now on."""
        directory = Directory(self.transport, MonotonicClock(), journal, self.settings)
        self.transport.places["directory"] = directory
        return directory

    async def _direct(self, directory: Directory, journal: FileJournal) -> NoReturn:
        """Let a `directory` run; another one where its disk has refused a change."""
        while True:
            with suppress(OSError):
                await directory.run()
            await asyncio.sleep(self.settings.lease / 6)
            with suppress(OSError):
                directory = self._directory(journal)

    def _ended(self, running: asyncio.Task[None]) -> None:
        """Nobody takes over what they cannot answer any more: that is said at once."""
        if not running.cancelled() and (error := running.exception()) is not None:
            ended = _Ended(error)
            self.transport.places |= {"directory": ended, NAME: ended}

    async def close(self) -> None:
        for running in self._running:
            running.cancel()
        await self._member.close()


class _Ended:
    """Answers every call with the `error` that the directory or the node ended with."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def handle(self, method: str, record: Record) -> Record:
        """Raises it, whatever the `method` and the `record`."""
        raise self._error

    async def stream(self, method: str, record: Record) -> AsyncIterator[Record]:
        """The same for a `stream` by `method` with `record`."""
        raise self._error
        yield
