"""An owner's way to bring another node up to what it has."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from kvactors.actors.cluster.protocol.errors import LedgerGap
from kvactors.actors.cluster.protocol.interfaces import Host, Record, Transport
from kvactors.actors.cluster.protocol.node.replica import digests
from kvactors.actors.cluster.protocol.records import Settings

__all__ = ["Copier", "Peer"]

# Bytes of records in one call.
CHUNK = 2**20
# How often a replica that forgot where it was is begun with again.
TRIES = 3


@dataclass(slots=True)
class Peer:
    """Another node that is brought what an agent's owner has."""

    agent: str
    node: str
    epoch: int
    have: int | None = None
    """How many of the owner's records it has, synced; None: not asked in this epoch."""


class Copier:
    """Sends records and pieces of KV of `host` through `transport`, a call for as long as
    `settings` say. Raises what the calls raise: StaleEpoch above all."""

    def __init__(self, transport: Transport, host: Host, settings: Settings) -> None:
        self._transport, self._host, self._settings = transport, host, settings

    async def catch_up(self, peer: Peer) -> None:
        """On return `peer` has all records, synced."""
        for _ in range(TRIES):
            try:
                await self._align(peer)
                await self._send(peer)
                return
            except LedgerGap as gap:
                peer.have, last = None, gap
        raise last

    async def _align(self, peer: Peer) -> None:
        if peer.have is None:
            mine = digests(await self._host.records(peer.agent, 0))
            peer.have = await self._call(peer, "align", digests=mine)

    async def _send(self, peer: Peer) -> None:
        assert peer.have is not None
        new = await self._host.records(peer.agent, peer.have)
        for part in _chunks(new):
            peer.have = await self._call(peer, "replicate", start=peer.have, records=part)

    async def send_pieces(self, peer: Peer, *, hurried: bool = False) -> None:
        """Those pieces of KV that it lacks. A piece may take as long as all of an agent, unless
        it is `hurried`, as somebody waits."""
        within = self._settings.call if hurried else self._settings.bring
        record = {"agent": peer.agent}
        answer = await self._transport.call(
            peer.node, "digests", record, within=self._settings.call
        )
        async for piece in _ahead(self._host.pieces(peer.agent, answer["have"])):
            await self._call(peer, "piece", within, piece=piece)

    async def _call(
        self, peer: Peer, method: str, within: float | None = None, **fields: object
    ) -> int:
        record = {"agent": peer.agent, "epoch": peer.epoch, **fields}
        within = within or self._settings.call
        answer = await self._transport.call(peer.node, method, record, within=within)
        return int(answer.get("have", 0))


async def _ahead(items: AsyncIterator[Record]) -> AsyncIterator[Record]:
    """The same `items`: one is read while the one before is sent."""
    reading = asyncio.ensure_future(anext(items, None))
    try:
        while (item := await reading) is not None:
            reading = asyncio.ensure_future(anext(items, None))
            yield item
    finally:
        reading.cancel()


def _chunks(records: list[bytes]) -> Iterator[list[bytes]]:
    part: list[bytes] = []
    size = 0
    for record in records:
        if part and size + len(record) > CHUNK:
            yield part
            part, size = [], 0
        part.append(record)
        size += len(record)
    if part:
        yield part
