"""What both actors have: bytes in, bytes out, and a beginning that Ray does not wait for."""

import asyncio
import logging
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import ray

from kvactors.actors.cluster.machine.direct import Answers, streaming
from kvactors.actors.cluster.protocol.wire import pack, serve, serve_stream
from kvactors.actors.cluster.ray.gathering import gathered

__all__ = ["CONCURRENT", "Shell"]

CONCURRENT = 10_000
"""Calls that one actor has under way at once. Turns wait in the engine, not here."""

TOLD = 2.0
"""Seconds between a beginning that failed and the next."""

logger = logging.getLogger("kvactors")


class Shell(ABC):
    """An actor around a node, or around the directory. Where it died Ray makes another one, which
    nobody may ever call: so each calls itself. While it is made Ray may tell it that it is
    RESTARTING, which fails a call that is not to be repeated: then it would never begin."""

    def __init__(self) -> None:
        self._beginning: asyncio.Task[Answers] | None = None
        self._kept: asyncio.Task[None] | None = None
        own = ray.get_runtime_context().current_actor
        own.ready.options(max_task_retries=-1).remote()

    @abstractmethod
    async def begin(self) -> Answers:
        """Start what answers."""

    def keep(self, running: Coroutine[Any, Any, None]) -> None:
        """Let this run beside it. Where it fails the process ends: its successor begins anew, with
        what is on disk."""
        self._kept = asyncio.get_running_loop().create_task(running)
        self._kept.add_done_callback(_end_if_failed)

    def stop(self) -> None:
        """Keep nothing running beside any more."""
        if self._kept is not None:
            self._kept.cancel()

    async def ready(self) -> bytes:
        """Return when it answers: its process. An error, packed, where it never will."""

        async def wait(_: str, __: object) -> dict[str, object]:
            await self._begun()
            return {"pid": os.getpid()}

        return await serve(wait, "ready", pack({}))

    async def handle(self, method: str, payload: bytes) -> bytes:
        """The answer to a call."""
        return await serve((await self._begun()).handle, method, payload)

    async def stream(self, method: str, payload: bytes) -> AsyncIterator[bytes]:
        """The answers to one, several in a piece."""
        items = serve_stream(streaming(await self._begun()), method, payload)
        async for piece in gathered(items):
            yield piece

    async def _begun(self) -> Answers:
        if self._beginning is None:
            self._beginning = asyncio.get_running_loop().create_task(self.begin())
            self._beginning.add_done_callback(_begin_anew)
        return await asyncio.shield(self._beginning)


def _begin_anew(beginning: "asyncio.Task[Any]") -> None:
    """What has not begun never will here; whoever waits is told first."""
    beginning.get_loop().call_later(TOLD, _end_if_failed, beginning)


def _end_if_failed(running: "asyncio.Task[Any]") -> None:
    if not running.cancelled() and (error := running.exception()) is not None:
        logger.critical("this process ends, and another one begins: %s", error, exc_info=error)
        os.kill(os.getpid(), signal.SIGKILL)
