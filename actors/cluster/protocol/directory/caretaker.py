"""What the directory does by itself: fences, take-overs, moves, new replicas, an even load."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import islice

from kvactors.actors.cluster.protocol.directory.members import Members
from kvactors.actors.cluster.protocol.directory.moves import Moves
from kvactors.actors.cluster.protocol.directory.placement import choose, levelling
from kvactors.actors.cluster.protocol.directory.places import Places
from kvactors.actors.cluster.protocol.directory.registry import Registry
from kvactors.actors.cluster.protocol.errors import ClusterError
from kvactors.actors.cluster.protocol.interfaces import Transport
from kvactors.actors.cluster.protocol.records import Place, Settings

__all__ = ["Caretaker"]

# A move that failed so often is given up.
TRIES = 8
# Agents that one round takes over, or makes a replica for; the next takes others.
AT_ONCE = 256


class Caretaker:
    """Goes round: looks at `registry` and `members` by the `settings`, and calls nodes through
    `transport`. It changes nothing but by `places` and `moves`, and holds no lock while it waits.
    """

    def __init__(
        self,
        registry: Registry,
        members: Members,
        places: Places,
        moves: Moves,
        transport: Transport,
        *,
        settings: Settings,
    ) -> None:
        self._registry, self._members = registry, members
        self._places, self._moves = places, moves
        self._transport, self._settings = transport, settings
        self._look = True
        self._failed: dict[str, int] = {}

    def look(self) -> None:
        """Nodes or places have changed: look at all agents in the next round."""
        self._look = True

    async def round(self) -> None:
        """Take-overs and new replicas that are due, and moves that are planned."""
        if self._look:
            self._look = False
            # Something may change while it is looked at.
            more = True
            try:
                more = await self._over_all()
            finally:
                self._look = self._look or more

    async def drive(self) -> None:
        """Moves as far as they go."""
        await self._each(list(self._registry.moves), self._drive)

    async def _over_all(self) -> bool:
        """Whether there is still something to do."""
        places = self._registry.places.values()
        away = [place.agent for place in places if not self._registry.alive(place.node)]
        waiting = await self._each(away[:AT_ONCE], self._places.settled)
        needy = self._needy()
        waiting += await self._each(needy, self._mend)
        return await self._plan() or bool(waiting or needy)

    async def _each(self, agents: list[str], do: Callable[[str], Awaitable[object]]) -> int:
        """How many could not be done now."""
        gate = asyncio.Semaphore(self._settings.moves)

        async def one(agent: str) -> int:
            async with gate:
                try:
                    await do(agent)
                except ClusterError:
                    return 1
                return 0

        return sum(await asyncio.gather(*map(one, agents)))

    # Replicas

    def _needy(self) -> list[str]:
        """Agents whose only copy is their owner's: as many as are seen to at once."""
        room = set(self._members.room())
        places = self._registry.places.values()
        needy = (p.agent for p in places if room - {p.node} and self._needs_replica(p))
        return list(islice(needy, AT_ONCE))

    def _needs_replica(self, place: Place) -> bool:
        registry = self._registry
        if self._settings.durable == "one" or not registry.alive(place.node):
            return False
        fresh = place.incarnation == 0 and place.replica is None and place.epoch == 1
        safe = registry.alive(place.replica) and registry.takes(place.replica or "")
        return not fresh and not safe

    async def _mend(self, agent: str) -> None:
        place = self._places.place(agent)
        record = {"agent": agent, "lost": place.replica}
        await self._transport.call(place.node, "mend", record, within=4 * self._settings.call)

    # Moves

    async def _plan(self) -> bool:
        """Moves that drained and uneven nodes ask for, a few at a time. Whether there were any."""
        if (free := self._settings.moves - len(self._registry.moves)) <= 0:
            return True
        agents: dict[str, list[str]] = {}
        for place in self._registry.places.values():
            if place.agent not in self._registry.moves:
                agents.setdefault(place.node, []).append(place.agent)
        moves = self._draining(agents)[:free]
        moves += levelling(self._members.room(), agents, free - len(moves))
        for agent, target in moves:
            await self._moves.move({"agent": agent, "target": target})
        return bool(moves or self._registry.moves or self._leaving(agents))

    def _draining(self, agents: dict[str, list[str]]) -> list[tuple[str, str]]:
        room = self._members.room()
        moves = []
        for agent in self._leaving(agents) if room else ():
            moves.append((agent, target := choose(room, {}) or ""))
            room[target] = replace(room[target], agents=room[target].agents + 1)
        return moves

    def _leaving(self, agents: dict[str, list[str]]) -> list[str]:
        drained = [m.node for m in self._registry.members.values() if m.draining]
        return [agent for node in drained for agent in agents.get(node, ())]

    async def _drive(self, agent: str) -> None:
        """One try. A crash anywhere leaves the move in the journal: it is tried again."""
        move = self._registry.moves.get(agent)
        if move is None:
            # It was forgotten, while others were brought.
            return
        target = move.target
        place = await self._places.settled(agent)
        if place.node == target or not self._registry.takes(target):
            await self._moves.give_up(agent)
            return
        try:
            await self._moves.bring(place, target)
            self._failed.pop(agent, None)
        except ClusterError:
            await self._failed_once(agent)
            raise

    async def _failed_once(self, agent: str) -> None:
        self._failed[agent] = self._failed.get(agent, 0) + 1
        if self._failed[agent] >= TRIES:
            del self._failed[agent]
            await self._moves.give_up(agent)
