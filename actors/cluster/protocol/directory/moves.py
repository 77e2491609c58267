"""Agents that shall live elsewhere, or nowhere: wishes in the journal until they are met."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from kvactors.actors.cluster.protocol.directory.places import Places
from kvactors.actors.cluster.protocol.directory.registry import Registry, next_epoch
from kvactors.actors.cluster.protocol.errors import (
    AgentMoving,
    AgentUnavailable,
    NodeUnavailable,
    StaleEpoch,
    UnknownAgent,
    UnknownNode,
)
from kvactors.actors.cluster.protocol.interfaces import Clock, Record, Transport
from kvactors.actors.cluster.protocol.locks import Locks
from kvactors.actors.cluster.protocol.records import Move, Place, Settings
from kvactors.actors.cluster.protocol.waiting import done_soon

__all__ = ["Moves"]


class Moves:
    """In the `registry`; `places` change with them, under their `locks`, as `settings` say; owners
    and targets are called through `transport`. `begun` is called with each agent that shall move;
    who asks how it goes waits a while, by `clock`."""

    def __init__(
        self,
        registry: Registry,
        places: Places,
        locks: Locks,
        transport: Transport,
        clock: Clock,
        *,
        settings: Settings,
        begun: Callable[[str], None],
    ) -> None:
        self._registry, self._places, self._locks = registry, places, locks
        self._transport, self._clock, self._settings = transport, clock, settings
        self._begun = begun
        self._over: dict[str, asyncio.Future[None]] = {}

    async def move(self, record: Record) -> Record:
        """A person wants the agent to live on `target`, and to stay there. Returns once that is
        written; `moved` says when it is done."""
        agent, target = record["agent"], record["target"]
        await self._begin(agent, target, stays=[(agent, target)])
        return {}

    async def plan(self, agent: str, target: str) -> None:
        """The same for an agent that goes where there is room."""
        await self._begin(agent, target, stays=[])

    async def _begin(self, agent: str, target: str, stays: list[tuple[str, str]]) -> None:
        async with self._locks.of(agent):
            here = self._places.place(agent).node == target
            if not here:
                self._require_taking(target)
            moves = [] if here and agent not in self._registry.moves else [Move(agent, target)]
            await self._registry.note(moves=moves, stays=stays)
        if moves:
            self._begun(agent)

    def _require_taking(self, node: str) -> None:
        if node not in self._registry.members:
            raise UnknownNode(node=node)
        if not self._registry.takes(node):
            raise NodeUnavailable(node=node)

    async def moved(self, record: Record) -> Record:
        """Whether no move of an agent is under way, and where it lives: as soon as that is so, or
        after half of the time for which an answer is waited for."""
        agent = record["agent"]
        if agent in self._registry.moves:
            if agent not in self._over:
                self._over[agent] = asyncio.get_running_loop().create_future()
            await done_soon(self._clock, self._over[agent], self._settings.call / 2)
        place = self._places.place(agent)
        return {"over": agent not in self._registry.moves, "place": place.to_record()}

    def _tell(self, agent: str) -> None:
        if (over := self._over.pop(agent, None)) is not None:
            over.set_result(None)

    async def bring(self, place: Place, move: Move) -> None:
        """Have the owner of `place` bring the target of `move` what there is of the agent; then let
        go of it, and bring what is new; then make the target the owner. A crash anywhere leaves the
        agent where it was or, after that, there."""
        agent, target = move.agent, move.target
        await self._ask(place, "prepare", agent=agent, target=target)
        now = await self._places.settled(agent)
        if now.node != place.node:
            raise StaleEpoch(agent=agent, epoch=place.epoch, held=now.epoch)
        async with self._let_go(now, "release", target=target):
            self._require_taking(target)
            if self._registry.moves.get(agent) != move:
                raise AgentMoving(agent=agent)
            moved = next_epoch(now, node=target, incarnation=0, replica=self._kept(now, target))
            await self._registry.note(places=[moved], moved=[agent])
        self._tell(agent)

    def _kept(self, place: Place, target: str) -> str | None:
        """Who was the owner is the replica, where there is need of one."""
        if self._settings.durable == "one":
            return None
        return place.node if place.replica in (None, target) else place.replica

    async def forget(self, record: Record) -> Record:
        """The agent is no more, its owner knows; what nodes have of it goes with their sweeps. Who
        asks again, as its owner took long, is told the same; of another that has its name by now
        nothing is forgotten, where `born` says which was meant. Nor is anybody asked where all are
        away who have it: they learn it when they are back. Raises UnknownAgent."""
        if self._registry.gone.get(record["agent"], -1) >= record.get("born", float("inf")):
            return {}
        try:
            place = await self._places.settled(record["agent"])
            async with self._let_go(place, "retire"):
                await self._registry.note(gone=[place.agent])
        except AgentUnavailable:
            await self._forget_lost(record["agent"])
        except UnknownAgent:
            if record["agent"] not in self._registry.gone:
                raise
        self._tell(record["agent"])
        return {}

    async def _forget_lost(self, agent: str) -> None:
        async with self._locks.of(agent):
            place = self._places.place(agent)
            if any(map(self._registry.alive, (place.node, place.replica))):
                # One is back meanwhile.
                raise AgentMoving(agent=agent)
            await self._registry.note(gone=[agent])

    @asynccontextmanager
    async def _let_go(self, place: Place, method: str, **fields: Any) -> AsyncIterator[None]:
        """The owner has let go of the agent, and nobody has claimed it since: with its lock."""
        self._places.moving[place.agent] = place
        try:
            await self._ask(place, method, agent=place.agent, epoch=place.epoch, **fields)
            async with self._locks.of(place.agent):
                self._places.refuse_changed(place)
                yield
        finally:
            if self._places.moving.get(place.agent) is place:
                del self._places.moving[place.agent]

    async def give_up(self, agent: str) -> None:
        """The move is over. In a new epoch: what its target was sent is an orphan."""
        async with self._locks.of(agent):
            await self._registry.note(places=[next_epoch(self._places.place(agent))], moved=[agent])
        self._tell(agent)

    async def _ask(self, place: Place, method: str, **record: Any) -> None:
        within = self._settings.bring
        await self._transport.call(place.node, method, record, within=within)
