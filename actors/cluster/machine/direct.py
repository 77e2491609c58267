"""Between the nodes of one process: the same packed records, handed over on the same loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, runtime_checkable

from kvactors.actors.cluster.protocol.errors import Unreachable, WrongRecord
from kvactors.actors.cluster.protocol.interfaces import Record, Transport
from kvactors.actors.cluster.protocol.wire import answered, pack, serve, serve_stream

__all__ = ["Answers", "DirectTransport", "NearTransport", "streaming"]


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


class NearTransport(DirectTransport):
    """The same, and what is not there by the transport `far`."""

    def __init__(self, places: dict[str, Answers], far: Transport) -> None:
        super().__init__(places)
        self._far = far

    async def call(
        self, to: str, method: str, record: Record, *, within: float | None = None
    ) -> dict[str, Any]:
        """See Transport: what `to` answers to `method` of `record`, `within` so many seconds."""
        if to in self.places:
            return await super().call(to, method, record, within=within)
        return dict(await self._far.call(to, method, record, within=within))

    async def stream(self, to: str, method: str, record: Record) -> AsyncIterator[Record]:
        """See Transport: the items that `to` answers with to `method` of `record`."""
        near = to in self.places
        items = super().stream(to, method, record) if near else self._far.stream(to, method, record)
        async for item in items:
            yield item


def streaming(place: Answers) -> Callable[[str, Record], AsyncIterator[Record]]:
    """What answers item by item. Raises WrongRecord: the directory does not."""
    if not isinstance(place, Streams):
        raise WrongRecord(reason="the directory has no streams")
    return place.stream
