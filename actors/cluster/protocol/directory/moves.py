"""Agents that shall live elsewhere, or nowhere: wishes in the journal until they are met."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from kvactors.actors.cluster.protocol.directory.places import Places
from kvactors.actors.cluster.protocol.directory.registry import Registry, next_epoch
from kvactors.actors.cluster.protocol.errors import UnknownAgent, UnknownNode
from kvactors.actors.cluster.protocol.interfaces import Record, Transport
from kvactors.actors.cluster.protocol.locks import Locks
from kvactors.actors.cluster.protocol.records import Move, Place, Settings

__all__ = ["Moves"]


class Moves:
    """In the `registry`; `places` change with them, under their `locks`, as `settings` say; owners
    and targets are called through `transport`. `changed` is called when there is a new one."""

    def __init__(
        self,
        registry: Registry,
        places: Places,
        locks: Locks,
        transport: Transport,
        changed: Callable[[], None],
        *,
        settings: Settings,
    ) -> None:
        self._registry, self._places, self._locks = registry, places, locks
        self._transport, self._changed, self._settings = transport, changed, settings

    async def move(self, record: Record) -> Record:
        """The agent shall live on `target`. Returns once that is written; `moves` says until when
        it is under way."""
        agent, target = record["agent"], record["target"]
        async with self._locks.of(agent):
            self._places.place(agent)
            if not self._registry.takes(target):
                raise UnknownNode(node=target)
            await self._registry.note(moves=[Move(agent, target)])
        self._changed()
        return {}

    async def moves(self, _: Record) -> Record:
        """Of each agent that moves: where to."""
        return {agent: move.target for agent, move in self._registry.moves.items()}

    async def bring(self, place: Place, target: str) -> None:
        """Have the owner of `place` let go of the agent and bring `target` all of it, then make
        that the owner. A crash anywhere leaves the agent where it was or, after that, there."""
        async with self._let_go(place, "release", target=target):
            if not self._registry.takes(target):
                raise UnknownNode(node=target)
            moved = next_epoch(place, node=target, incarnation=0, replica=self._kept(place, target))
            await self._registry.note(places=[moved], moved=[place.agent])

    def _kept(self, place: Place, target: str) -> str | None:
        """Who was the owner is the replica, where there is need of one."""
        if self._settings.durable == "one":
            return None
        return place.node if place.replica in (None, target) else place.replica

    async def forget(self, record: Record) -> Record:
        """The agent is no more, its owner knows; what nodes have of it goes with their sweeps. Who
        asks again, as its owner took long, is told the same. Raises UnknownAgent."""
        try:
            place = await self._places.settled(record["agent"])
            async with self._let_go(place, "retire"):
                await self._registry.note(gone=[place.agent])
        except UnknownAgent:
            if record["agent"] not in self._registry.gone:
                raise
        return {}

    @asynccontextmanager
    async def _let_go(self, place: Place, method: str, **fields: Any) -> AsyncIterator[None]:
        """The owner has let go of the agent, and nobody has claimed it since: with its lock."""
        self._places.moving.add(place.agent)
        try:
            record = {"agent": place.agent, "epoch": place.epoch, **fields}
            within = self._settings.bring
            await self._transport.call(place.node, method, record, within=within)
            async with self._locks.of(place.agent):
                self._places.refuse_changed(place)
                yield
        finally:
            self._places.moving.discard(place.agent)

    async def give_up(self, agent: str) -> None:
        """The move is over. In a new epoch: what its target was sent is an orphan."""
        async with self._locks.of(agent):
            await self._registry.note(places=[next_epoch(self._places.place(agent))], moved=[agent])
