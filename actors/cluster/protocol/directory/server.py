"""The directory: who owns which agent, which nodes have a lease, and what shall move where."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kvactors.actors.cluster.protocol.directory.caretaker import Caretaker
from kvactors.actors.cluster.protocol.directory.placement import Load, choose
from kvactors.actors.cluster.protocol.directory.registry import Registry, next_epoch
from kvactors.actors.cluster.protocol.errors import (
    AgentExists,
    AgentMoving,
    AgentUnavailable,
    Fenced,
    NoRoom,
    NotOwner,
    StaleEpoch,
    UnknownAgent,
    UnknownNode,
    Unreachable,
    WrongRecord,
)
from kvactors.actors.cluster.protocol.interfaces import Clock, Journal, Record, Transport
from kvactors.actors.cluster.protocol.locks import Locks
from kvactors.actors.cluster.protocol.records import Member, Move, Place, Settings

__all__ = ["Directory"]


class Directory:
    """One for a cluster. It answers from memory, and writes to its journal before it acts.

    After a failure of its disk `run` raises: start another one over the same journal.
    """

    def __init__(
        self, transport: Transport, clock: Clock, journal: Journal, settings: Settings
    ) -> None:
        self._transport, self._clock, self._settings = transport, clock, settings
        self.registry = Registry(journal)
        self._locks = Locks()
        self.loads: dict[str, Load] = {}
        # When each was heard of last. After a restart that is not known: now is the latest.
        self._seen = dict.fromkeys(self.registry.members, clock.now())
        self.moving: set[str] = set()
        self._methods: dict[str, Callable[[Record], Awaitable[Record]]] = {
            "join": self.join,
            "renew": self.renew,
            "find": self.find,
            "whose": self.whose,
            "claim": self.claim,
            "spawn": self.spawn,
            "offer": self.offer,
            "name": self.name,
            "outdate": self.outdate,
            "move": self.move,
            "moves": self.moves,
            "drain": self.drain,
            "nodes": self.nodes,
            "agents": self.agents,
            "forget": self.forget,
            "stats": self.stats,
        }
        self._caretaker = Caretaker(self, transport, settings)

    async def handle(self, method: str, record: Record) -> Record:
        """Answer a call."""
        self.registry.check()
        if method not in self._methods:
            raise WrongRecord(reason=f"the directory has no method {method!r}")
        return await self._methods[method](record)

    async def run(self) -> None:
        """Its rounds. Raises OSError when its journal failed."""
        with suppress(Unreachable):
            await self.registry.compact()
        # Apart: a fence does not wait for a move.
        await asyncio.gather(
            self._again_and_again(self._fence_silent), self._again_and_again(self._caretaker.round)
        )
        raise self.registry.broken or OSError("the directory's journal")

    async def _again_and_again(self, round: Callable[[], Awaitable[None]]) -> None:
        while self.registry.broken is None:
            with suppress(Unreachable):
                await round()
            await self._clock.sleep(self._settings.lease / 6)

    # Nodes

    async def join(self, record: Record) -> Record:
        """A new incarnation of a node; those before it are over. The node has seen to that."""
        node, incarnation = record["node"], record["incarnation"]
        async with self._locks.of(f"node {node}"):
            member = self.registry.members.get(node)
            if member is None:
                await self.registry.note(members=[Member(node, incarnation)])
            elif incarnation > member.incarnation:
                again = replace(member, incarnation=incarnation, fenced=False)
                await self.registry.note(members=[again])
            self._last(node, incarnation)
            self._seen[node] = self._clock.now()
        self._caretaker.look()
        return {"node": node, "incarnation": incarnation}

    async def renew(self, record: Record) -> Record:
        """Another lease from now on, unless the incarnation is over."""
        node = record["node"]
        async with self._locks.of(f"node {node}"):
            self._last(node, record["incarnation"])
            self._seen[node] = self._clock.now()
            self.loads[node] = Load(**record["load"])
        return {}

    async def _fence_silent(self) -> None:
        """Those whose lease has run out by every clock are over: written, then acted upon."""
        for node in list(self.registry.members):
            if self._silent(node):
                async with self._locks.of(f"node {node}"):
                    await self._fence(node)

    async def _fence(self, node: str) -> None:
        if self._silent(node):
            await self.registry.note(members=[replace(self.registry.members[node], fenced=True)])
            self._caretaker.look()

    def _silent(self, node: str) -> bool:
        longest = self._settings.lease * (1 + self._settings.skew)
        return self.registry.alive(node) and self._clock.now() - self._seen[node] > longest

    def _last(self, node: str, incarnation: int) -> Member:
        member = self.registry.members.get(node)
        if member is None:
            raise UnknownNode(node=node)
        if member.incarnation != incarnation or member.fenced:
            raise Fenced(node=node, incarnation=incarnation, held=member.incarnation)
        return member

    # Places

    async def find(self, record: Record) -> Record:
        """Where an agent lives, after a take-over if that is due."""
        return (await self.settled(record["agent"])).to_record()

    async def whose(self, record: Record) -> Record:
        """The places of those of `agents` that there are, and where they are about to go. Of one
        that was forgotten: nobody's, in the epoch that ended with it."""
        known = {agent: self._known(agent) for agent in record["agents"]}
        return {agent: place for agent, place in known.items() if place}

    def _known(self, agent: str) -> dict[str, Any] | None:
        if (place := self.registry.places.get(agent)) is not None:
            move = self.registry.moves.get(agent)
            return {**place.to_record(), "target": move and move.target}
        if agent in self.registry.gone:
            epoch = self.registry.gone[agent] + 1
            return {"node": None, "replica": None, "target": None, "epoch": epoch}
        return None

    async def settled(self, agent: str) -> Place:
        """Its place; its replica's, from now on, if its owner is fenced."""
        if self.registry.alive((place := self.place(agent)).node):
            return place
        async with self._locks.of(agent):
            return await self._settle(agent)

    async def _settle(self, agent: str) -> Place:
        place = self.place(agent)
        if self.registry.alive(place.node):
            return place
        if not self.registry.alive(place.replica):
            raise AgentUnavailable(agent=agent, nodes=_names(place.node, place.replica))
        taken = next_epoch(place, node=place.replica, incarnation=0, replica=None)
        await self.registry.note(places=[taken])
        self._caretaker.look()
        return taken

    def place(self, agent: str) -> Place:
        """As it is written. Raises UnknownAgent."""
        if agent not in self.registry.places:
            raise UnknownAgent(agent=agent)
        return self.registry.places[agent]

    async def spawn(self, record: Record) -> Record:
        """A place for a new agent; that of one that was spawned in just this way."""
        agent, group, options = record["agent"], record["group"], record["options"]
        async with self._locks.of(agent):
            place = self.registry.places.get(agent)
            if place is None:
                node = self._choose(agent, group)
                epoch = self.registry.gone.get(agent, 0) + 1
                place = Place(agent, node, 0, epoch, None, group, epoch, options)
                await self.registry.note(places=[place])
            elif (place.options, place.group) != (options, group):
                raise AgentExists(agent=agent)
        return place.to_record()

    def _choose(self, agent: str, group: str | None) -> str:
        nodes = self.room()
        together = Counter(
            p.node for p in self.registry.places.values() if group and p.group == group
        )
        if (node := choose(nodes, together)) is None:
            raise NoRoom(agent=agent, nodes=_names(*self.registry.members))
        return node

    def room(self) -> dict[str, Load]:
        """The nodes that take agents, and what they have."""
        owned = Counter(place.node for place in self.registry.places.values())
        taking = [node for node in self.registry.members if self.registry.takes(node)]
        return {n: replace(self.loads.get(n, Load()), agents=owned[n]) for n in taking}

    async def claim(self, record: Record) -> Record:
        """The owner's incarnation begins to serve the agent: an epoch of its own."""
        agent, node, incarnation = record["agent"], record["node"], record["incarnation"]
        async with self._locks.of(agent):
            self._last(node, incarnation)
            place = await self._settle(agent)
            if place.node != node:
                raise NotOwner(agent=agent, node=node)
            if agent in self.moving:
                raise AgentMoving(agent=agent)
            claimed = next_epoch(place, incarnation=incarnation)
            await self.registry.note(places=[claimed])
        return claimed.to_record()

    async def offer(self, record: Record) -> Record:
        """A node for another replica, or None: not the owner, not `lost`."""
        place = self.place(record["agent"])
        kept = Counter(p.replica for p in self.registry.places.values() if p.replica)
        nodes = {n: kept[n] for n in self.room() if n not in (place.node, record["lost"])}
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
            await self.registry.note(places=[named])
        return named.to_record()

    async def outdate(self, record: Record) -> Record:
        """The same place in another epoch: who was made ready in that `epoch` is not named."""
        async with self._locks.of(record["agent"]):
            place = self.place(record["agent"])
            if place.epoch == record["epoch"]:
                await self.registry.note(places=[next_epoch(place)])
        return {}

    async def forget(self, record: Record) -> Record:
        """The agent is no more, its owner knows; what nodes have of it goes with their sweeps."""
        agent = record["agent"]
        place = await self.settled(agent)
        self.moving.add(agent)
        try:
            letting = {"agent": agent, "epoch": place.epoch}
            await self._transport.call(place.node, "retire", letting, within=self._settings.call)
            async with self._locks.of(agent):
                self._refuse_changed(place)
                await self.registry.note(gone=[agent])
        finally:
            self.moving.discard(agent)
        return {}

    def _refuse_changed(self, place: Place) -> None:
        if (now := self.place(place.agent)) != place:
            raise StaleEpoch(agent=place.agent, epoch=place.epoch, held=now.epoch)

    # Moves

    async def move(self, record: Record) -> Record:
        """The agent shall live on `target`. Returns once that is written; `moves` says until when
        it is under way."""
        agent, target = record["agent"], record["target"]
        async with self._locks.of(agent):
            self.place(agent)
            if not self.registry.takes(target):
                raise UnknownNode(node=target)
            await self.registry.note(moves=[Move(agent, target)])
        self._caretaker.look()
        return {}

    async def commit(self, place: Place, target: str) -> None:
        """The owner of `place` has released the agent, and `target` has all records: it is the
        owner now, and who was it the replica, where there is need of one. Raises StaleEpoch."""
        async with self._locks.of(place.agent):
            self._refuse_changed(place)
            if not self.registry.takes(target):
                raise UnknownNode(node=target)
            kept = place.node if place.replica in (None, target) else place.replica
            moved = next_epoch(place, node=target, incarnation=0, replica=kept)
            await self.registry.note(places=[moved], moved=[place.agent])

    async def give_up(self, agent: str) -> None:
        """The move is over. In a new epoch: what its target was sent is an orphan."""
        async with self._locks.of(agent):
            await self.registry.note(places=[next_epoch(self.place(agent))], moved=[agent])

    async def drain(self, record: Record) -> Record:
        """All agents of a node go elsewhere, and none comes; or (not `on`) they may come again."""
        node = record["node"]
        async with self._locks.of(f"node {node}"):
            if node not in self.registry.members:
                raise UnknownNode(node=node)
            member = replace(self.registry.members[node], draining=record["on"])
            await self.registry.note(members=[member])
        self._caretaker.look()
        return {}

    # What there is

    async def moves(self, _: Record) -> Record:
        """Of each agent that moves: where to."""
        return {agent: move.target for agent, move in self.registry.moves.items()}

    async def nodes(self, _: Record) -> Record:
        """Of each node: what is known of it."""
        return {name: member.to_record() for name, member in self.registry.members.items()}

    async def agents(self, record: Record) -> Record:
        """Up to `count` places of agents whose names follow `after`, in their order."""
        names = sorted(a for a in self.registry.places if a > record["after"])
        return {name: self.place(name).to_record() for name in names[: record["count"]]}

    async def stats(self, _: Record) -> Record:
        """How many there are of all."""
        owned = Counter(place.node for place in self.registry.places.values())
        kept = Counter(p.replica for p in self.registry.places.values() if p.replica)
        return {
            "agents": len(self.registry.places),
            "moves": len(self.registry.moves),
            "nodes": {
                name: {
                    "alive": not member.fenced,
                    "draining": member.draining,
                    "agents": owned[name],
                    "replicas": kept[name],
                    "bytes": self.loads.get(name, Load()).bytes,
                    "waiting": self.loads.get(name, Load()).waiting,
                }
                for name, member in self.registry.members.items()
            },
        }


def _names(*nodes: str | None) -> str:
    return ", ".join(node for node in nodes if node) or "no node"
