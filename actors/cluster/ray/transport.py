"""The transport over Ray's actors: bytes of msgpack there and back, nothing of ours is pickled."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from ray.exceptions import RayError

from kvactors.actors.cluster.protocol.errors import Unreachable
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.wire import answered, pack
from kvactors.actors.cluster.ray.gathering import BEAT, scattered
from kvactors.actors.cluster.ray.lookup import look_up

__all__ = ["RayTransport"]

SILENT = 5 * BEAT
"""Seconds without a piece after which who sends them stands still."""


class RayTransport:
    """Reaches the actors of a cluster by their names. One loop."""

    def __init__(self) -> None:
        self._actors: dict[str, Any] = {}
        # Where the head is gone a look never ends, and has a thread: there is one of each name.
        self._looks: dict[str, asyncio.Future[Any]] = {}

    async def call(
        self, to: str, method: str, record: Record, *, within: float | None = None
    ) -> dict[str, Any]:
        """What `to` answers to `method` of `record`, `within` so many seconds. Raises Unreachable,
        and the ClusterError it was answered with."""
        try:
            async with asyncio.timeout(within):
                actor = await self._actor(to)
                data = await actor.handle.remote(method, pack(record))
        except (RayError, ValueError, TimeoutError) as error:
            raise self._lost(to, method) from error
        return answered(data)

    async def stream(self, to: str, method: str, record: Record) -> AsyncIterator[Record]:
        """The items that `to` answers with to `method` of `record`. Raises as `call` does."""
        try:
            actor = await self._actor(to)
            pieces = actor.stream.options(num_returns="streaming").remote(method, pack(record))
            while (piece := await _next(pieces)) is not None:
                for item in scattered(piece):
                    yield answered(item)
        except (RayError, ValueError, TimeoutError) as error:
            raise self._lost(to, method) from error

    async def _actor(self, name: str) -> Any:
        if (known := self._actors.get(name)) is not None:
            return known
        if (look := self._looks.get(name)) is None:
            look = self._looks[name] = asyncio.wrap_future(look_up(name))
            look.add_done_callback(lambda done: self._looked(name, done))
        return await asyncio.shield(look)

    def _looked(self, name: str, look: "asyncio.Future[Any]") -> None:
        del self._looks[name]
        if not look.cancelled() and look.exception() is None:
            self._actors[name] = look.result()

    def _lost(self, to: str, method: str) -> Unreachable:
        """One of that name that was started since is another actor."""
        self._actors.pop(to, None)
        return Unreachable(to=to, method=method)


async def _next(pieces: Any) -> bytes | None:
    """The next piece, or None behind the last. Raises TimeoutError, RayError."""
    async with asyncio.timeout(SILENT):
        found = await anext(pieces, None)
        return None if found is None else bytes(await found)
