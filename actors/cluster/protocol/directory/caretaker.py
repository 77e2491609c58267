"""What the directory does by itself: take-overs, new replicas, an even load."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import islice

from kvactors.actors.cluster.protocol.directory.members import Members
from kvactors.actors.cluster.protocol.directory.moves import Moves
from kvactors.actors.cluster.protocol.directory.placement import Load, choose, levelling, other_load
from kvactors.actors.cluster.protocol.directory.places import Places
from kvactors.actors.cluster.protocol.directory.registry import Registry
from kvactors.actors.cluster.protocol.errors import ClusterError
from kvactors.actors.cluster.protocol.interfaces import Transport
from kvactors.actors.cluster.protocol.records import Place, Settings

__all__ = ["Caretaker"]

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
        self._seen: dict[str, Load] = {}

    def look(self) -> None:
        """Nodes or places have changed: look at all agents in the next round."""
        self._look = True

    async def round(self) -> None:
        """Take-overs and new replicas that are due, and moves that are planned."""
        loads = self._members.room()
        if self._look or other_load(self._seen, loads):
            self._look, self._seen = False, loads
            # Something may change while it is looked at.
            more = True
            try:
                more = await self._over_all()
            finally:
                self._look = self._look or more

    async def _over_all(self) -> bool:
        """Whether there is still something to do."""
        waiting = await self._each(self._away(), self._places.settled)
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

    def _away(self) -> list[str]:
        """Agents whose owners are gone: as many as are taken over at once. Whose replica is away
        as well waits until a node comes."""
        alive, places = self._registry.alive, self._registry.places.values()
        away = (p.agent for p in places if not alive(p.node) and alive(p.replica))
        return list(islice(away, AT_ONCE))

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
        moves = self._draining(agents, free)
        # Whom a person has put somewhere stays there.
        free_to_go = {node: list(filter(self._may_go, there)) for node, there in agents.items()}
        moves += levelling(self._members.room(), free_to_go, free - len(moves))
        for agent, target in moves:
            await self._moves.plan(agent, target)
        return bool(moves or self._registry.moves or self._leaving(agents))

    def _may_go(self, agent: str) -> bool:
        return agent not in self._registry.stays

    def _draining(self, agents: dict[str, list[str]], most: int) -> list[tuple[str, str]]:
        room = self._members.room()
        moves = []
        for agent in self._leaving(agents)[:most] if room else ():
            moves.append((agent, target := choose(room, {}) or ""))
            room[target] = replace(room[target], agents=room[target].agents + 1)
        return moves

    def _leaving(self, agents: dict[str, list[str]]) -> list[str]:
        drained = [m.node for m in self._registry.members.values() if m.draining]
        return [agent for node in drained for agent in agents.get(node, ())]
