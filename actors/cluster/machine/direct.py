"""Between the nodes of one process: the same packed records, handed over on the same loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, runtime_checkable

from kvactors.actors.cluster.protocol.errors import Unreachable, WrongRecord
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.wire import answered, pack, serve, serve_stream

__all__ = ["Answers", "DirectTransport", "streaming"]


class Answers(Protocol):
    """The directory, or a node, as a transport sees it."""

    async def handle(self, method: str, record: Record) -> Record:
        """The answer to one call. Raises ClusterError."""
        ...


@runtime_checkable
class Streams(Answers, Protocol):
    """A node."""

    def stream(self, method: str, record: Record) -> AsyncIterator[Record]:
        """The answers to one, item by item."""
        ...


class DirectTransport:
    """Reaches what `places` names, by name; what is taken out of it is unreachable. One loop."""

    def __init__(self, places: dict[str, Answers]) -> None:
        self.places = places

    async def call(
        self, to: str, method: str, record: Record, *, within: float | None = None
    ) -> dict[str, Any]:
        """What `to` answers to `method` of `record`, `within` so many seconds. Raises Unreachable,
        and the ClusterError it was answered with."""
        place = self._place(to, method)
        try:
            async with asyncio.timeout(within):
                return answered(await serve(place.handle, method, pack(record)))
        except TimeoutError as error:
            raise Unreachable(to=to, method=method) from error

    async def stream(self, to: str, method: str, record: Record) -> AsyncIterator[Record]:
        """The items that `to` answers with to `method` of `record`. Raises as `call` does."""
        async for data in serve_stream(streaming(self._place(to, method)), method, pack(record)):
            yield answered(data)

    def _place(self, to: str, method: str) -> Answers:
        if to not in self.places:
            raise Unreachable(to=to, method=method)
        return self.places[to]


def streaming(place: Answers) -> Callable[[str, Record], AsyncIterator[Record]]:
    """What answers item by item. Raises WrongRecord: the directory does not."""
    if not isinstance(place, Streams):
        raise WrongRecord(reason="the directory has no streams")
    return place.stream
