"""The places of agents: each change of one is a compare-and-swap, and a new epoch."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvactors.actors.cluster.protocol.directory.members import Members
from kvactors.actors.cluster.protocol.directory.placement import beside, choose
from kvactors.actors.cluster.protocol.directory.registry import Registry, next_epoch
from kvactors.actors.cluster.protocol.errors import (
    AgentExists,
    AgentMoving,
    AgentUnavailable,
    NoRoom,
    NotOwner,
    StaleEpoch,
    UnknownAgent,
)
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.locks import Locks
from kvactors.actors.cluster.protocol.records import ADOPTED, FORK, Place

__all__ = ["Places"]


class Places:
    """In the `registry`, on nodes of `members`. `changed` is called when an agent may need another
    replica. Who holds an agent's lock of `locks` waits for the journal, and for nothing else.
    `refuse_unsure` raises AgentUnsure for one without a place that may be stored somewhere."""

    def __init__(
        self,
        registry: Registry,
        members: Members,
        locks: Locks,
        changed: Callable[[], None],
        *,
        refuse_unsure: Callable[[str], object] = bool,
    ) -> None:
        self._registry, self._members = registry, members
        self._refuse_unsure = refuse_unsure
        self._locks, self._changed = locks, changed
        # What owners let go of just now, as it is until then: who is one claims it no more.
        self.moving: dict[str, Place] = {}

    async def find(self, record: Record) -> Record:
        """Where an agent lives, after a take-over if that is due."""
        return (await self.settled(record["agent"])).to_record()

    async def whose(self, record: Record) -> Record:
        """Of those of `agents` that there are: who has them, who is about to, and in which epoch.
        Of one that was forgotten: nobody, in the epoch that ended with it."""
        known = {agent: self._known(agent) for agent in record["agents"]}
        return {agent: place for agent, place in known.items() if place}

    def _known(self, agent: str) -> dict[str, Any] | None:
        if (place := self._registry.places.get(agent)) is not None:
            move = self._registry.moves.get(agent)
            target, epoch = move and move.target, place.epoch
            who = {"node": place.node, "replica": place.replica, "target": target}
            return {**who, "epoch": epoch, "born": place.born}
        if agent in self._registry.gone:
            epoch = self._registry.gone[agent] + 1
            nobody = dict.fromkeys(("node", "replica", "target", "born"))
            return {**nobody, "epoch": epoch}
        return None

    async def settled(self, agent: str) -> Place:
        """Its place; if its owner is fenced, its replica's from now on, or, of one that nobody has
        claimed yet, any other's."""
        if self._registry.alive((place := self.place(agent)).node):
            return place
        async with self._locks.of(agent):
            return await self._settle(agent)

    async def _settle(self, agent: str) -> Place:
        place = self.place(agent)
        if self._registry.alive(place.node):
            return place
        if self._registry.alive(place.replica):
            taken = next_epoch(place, node=place.replica, incarnation=0, replica=None)
        elif place.fresh and self._members.room():
            # Nothing is lost with that node: as if it were spawned now.
            node = self._choose(agent, place.group)
            taken = next_epoch(place, node=node, born=place.epoch + 1)
        else:
            raise AgentUnavailable(agent=agent, nodes=_names(place.node, place.replica))
        await self._registry.note(places=[taken])
        self._changed()
        return taken

    def place(self, agent: str) -> Place:
        """As it is written. Raises UnknownAgent, AgentUnsure."""
        if agent not in self._registry.places:
            self._refuse_unsure(agent)
            raise UnknownAgent(agent=agent)
        return self._registry.places[agent]

    def refuse_changed(self, place: Place) -> None:
        """Raises StaleEpoch if it is not as it was."""
        if (now := self.place(place.agent)) != place:
            raise StaleEpoch(agent=place.agent, epoch=place.epoch, held=now.epoch)

    async def spawn(self, record: Record) -> Record:
        """A place for a new agent: on the `node` of its parent, if it has one, unless that is much
        fuller than others. Or that of one that was spawned in just this way, or adopted: then this
        is how."""
        agent, group, options = record["agent"], record["group"], record["options"]
        async with self._locks.of(agent):
            place = self._registry.places.get(agent)
            if place is None:
                self._refuse_unsure(agent)
                node = self._wanted(record) or self._choose(agent, group)
                epoch = self._registry.gone.get(agent, 0) + 1
                place = Place(agent, node, 0, epoch, None, group, epoch, options)
                await self._registry.note(places=[place])
            elif ADOPTED in place.options and FORK not in options:
                if options or group is not None:
                    place = next_epoch(place, options=options, group=group)
                    await self._registry.note(places=[place])
            elif not _same(place, options, group):
                raise AgentExists(agent=agent)
        return place.to_record()

    def _wanted(self, record: Record) -> str | None:
        node: str | None = record.get("node")
        return node if node and beside(self._members.room(), node) else None

    def _choose(self, agent: str, group: str | None) -> str:
        nodes = self._members.room()
        together = Counter[str]() if group is None else self._registry.groups.get(group, Counter())
        if (node := choose(nodes, together)) is None:
            raise NoRoom(agent=agent, nodes=_names(*self._registry.members))
        return node

    async def claim(self, record: Record) -> Record:
        """The owner's incarnation begins to serve the agent: an epoch of its own."""
        agent, node, incarnation = record["agent"], record["node"], record["incarnation"]
        async with self._locks.of(agent):
            self._members.last(node, incarnation)
            place = await self._settle(agent)
            if place.node != node:
                raise NotOwner(agent=agent, node=node)
            if self.moving.get(agent) == place:
                raise AgentMoving(agent=agent)
            claimed = next_epoch(place, incarnation=incarnation)
            await self._registry.note(places=[claimed])
        if FORK in claimed.options and claimed.replica is None:
            # It has a memory before its first turn.
            self._changed()
        return claimed.to_record()

    async def offer(self, record: Record) -> Record:
        """A node for another replica, or None: not the owner, not `lost`."""
        place = self.place(record["agent"])
        kept = self._registry.kept
        nodes = {n: kept[n] for n in self._members.room() if n not in (place.node, record["lost"])}
        return {"node": min(nodes, key=lambda n: (nodes[n], n), default=None)}

    async def name(self, record: Record) -> Record:
        """`replica` has all records of the agent: it is the one that takes over from now on."""
        agent, epoch = record["agent"], record["epoch"]
        async with self._locks.of(agent):
            place = self.place(agent)
            owner = (place.node, place.incarnation, place.epoch)
            if owner != (record["node"], record["incarnation"], epoch):
                raise StaleEpoch(agent=agent, epoch=epoch, held=place.epoch)
            named = next_epoch(place, replica=record["replica"])
            await self._registry.note(places=[named])
        return named.to_record()

    async def outdate(self, record: Record) -> Record:
        """The same place in another epoch: who was made ready in that `epoch` is not named. It is
        above what was `promised`, be that by another directory; so it is of who was forgotten."""
        agent, epoch = record["agent"], record["epoch"]
        last = max(epoch, record["promised"])
        async with self._locks.of(agent):
            place = self._registry.places.get(agent)
            if place is not None and place.epoch == epoch:
                await self._registry.note(places=[replace(place, epoch=last + 1)])
            elif place is None and self._registry.gone.get(agent) == epoch - 1:
                await self._registry.note(epochs={agent: last})
        return {}


def _same(place: Place, options: Record, group: str | None) -> bool:
    """Of a fork: whether it is the same request. What its parent remembers may be more by now."""
    if FORK in place.options and FORK in options:
        return bool(place.options[FORK]["request"] == options[FORK]["request"])
    return (place.options, place.group) == (options, group)


def _names(*nodes: str | None) -> str:
    return ", ".join(node for node in nodes if node) or "no node"
