"""What the directory does by itself: take-overs, new replicas, an even load."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace

from kvactors.actors.cluster.protocol.directory.members import Members
from kvactors.actors.cluster.protocol.directory.moves import Moves
from kvactors.actors.cluster.protocol.directory.placement import (
    Load,
    choose,
    fullest,
    levelling,
    other_load,
)
from kvactors.actors.cluster.protocol.directory.places import Places
from kvactors.actors.cluster.protocol.directory.registry import Registry
from kvactors.actors.cluster.protocol.errors import ClusterError
from kvactors.actors.cluster.protocol.interfaces import Transport
from kvactors.actors.cluster.protocol.records import Move, Place, Settings

__all__ = ["Caretaker"]

# Agents that one round takes over, or makes a replica for; the next takes others.
AT_ONCE = 256
# Places that are looked at in one go.
STRIDE = 2_000
# Agents of a full node among which those are chosen that go.
SAMPLE = 32


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
        waiting = await self._each(await self._away(), self._places.settled)
        needy = await self._needy()
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

    async def _away(self) -> list[str]:
        """Agents whose owners are gone: as many as are taken over at once. Whose replica is away
        as well waits until a node comes, unless nobody has claimed it yet."""
        alive, owned = self._registry.alive, self._registry.index.owned
        gone = [agents for node, agents in owned.items() if not alive(node)]
        room = bool(self._members.room())

        def wanted(place: Place) -> bool:
            return alive(place.replica) or (place.fresh and room)

        return await self._some(gone, wanted, AT_ONCE)

    async def _some(
        self, groups: Iterable[Collection[str]], wanted: Callable[[Place], bool], most: int
    ) -> list[str]:
        """Up to `most` agents of `groups` whose places are `wanted`. Others have their turn on the
        loop meanwhile, so that a place may be another by now: who acts looks again."""
        found: list[str] = []
        looked = 0
        for group in groups:
            for agent in list(group):
                if looked and looked % STRIDE == 0:
                    await asyncio.sleep(0)
                looked += 1
                place = self._registry.places.get(agent)
                if place is not None and wanted(place):
                    found.append(agent)
                    if len(found) >= most:
                        return found
        return found

    # Replicas

    async def _needy(self) -> list[str]:
        """Agents whose only copy is their owner's: as many as are seen to at once."""
        registry, room = self._registry, self._members.room()
        if self._settings.durable == "one" or not room:
            return []
        only = next(iter(room)) if len(room) == 1 else None

        def wanted(place: Place) -> bool:
            safe = registry.alive(place.replica) and registry.takes(place.replica or "")
            return registry.alive(place.node) and not safe and place.node != only

        kept = registry.index.kept
        unsafe = [agents for replica, agents in kept.items() if not registry.takes(replica)]
        return await self._some([registry.index.single, *unsafe], wanted, AT_ONCE)

    async def _mend(self, agent: str) -> None:
        place = self._places.place(agent)
        record = {"agent": agent, "lost": place.replica}
        await self._transport.call(place.node, "mend", record, within=4 * self._settings.call)

    # Moves

    async def _plan(self) -> bool:
        """Moves that drained and uneven nodes ask for, a few at a time. Whether there were any."""
        registry = self._registry
        if (free := self._settings.moves - len(registry.moves)) <= 0:
            return True
        drained = [m.node for m in registry.members.values() if m.draining and not m.fenced]
        leaving = [registry.index.owned[node] for node in drained]
        moves = self._elsewhere(await self._some(leaving, self._stands, free))
        moves += await self._levelling(free - len(moves))
        for move in moves:
            # The agent may be gone by now, or the target be.
            with suppress(ClusterError):
                await self._moves.plan(move.agent, move.target)
        return bool(moves or registry.moves or any(leaving))

    def _stands(self, place: Place) -> bool:
        return place.agent not in self._registry.moves

    def _may_go(self, place: Place) -> bool:
        """Whom a person has put somewhere stays there."""
        return self._stands(place) and place.agent not in self._registry.stays

    def _elsewhere(self, agents: list[str]) -> list[Move]:
        """Where `agents` of drained nodes go: each to its group, within the bound of that."""
        room = self._members.room()
        moves: list[Move] = []
        for agent in agents if room else ():
            together = self._together(agent, [*self._registry.moves.values(), *moves])
            moves.append(Move(agent, target := choose(room, together) or ""))
            room[target] = replace(room[target], agents=room[target].agents + 1)
        return moves

    def _together(self, agent: str, moves: Iterable[Move]) -> Counter[str]:
        """Where others of its group are, and where `moves` bring some."""
        places, groups = self._registry.places, self._registry.groups
        if agent not in places or (group := places[agent].group) is None:
            return Counter()
        coming = (m.target for m in moves if m.agent in places and places[m.agent].group == group)
        return groups[group] + Counter(coming)

    async def _levelling(self, most: int) -> list[Move]:
        room, owned = self._members.room(), self._registry.index.owned
        agents = {
            node: await self._some([owned[node]], self._may_go, SAMPLE)
            for node in fullest(room, most)
        }
        moves = levelling(room, agents, most, self._nearer)
        return [Move(agent, target) for agent, target in moves]

    def _nearer(self, agent: str, source: str, target: str) -> int:
        """How many more of its group an agent has on `target` than on `source`."""
        together = self._together(agent, ())
        return together[target] - together[source]
