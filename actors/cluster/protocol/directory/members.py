"""The nodes of a cluster: who has a lease, and whose time is over."""

from collections.abc import Callable
from dataclasses import replace

from kvactors.actors.cluster.protocol.directory.placement import Load
from kvactors.actors.cluster.protocol.directory.registry import Registry
from kvactors.actors.cluster.protocol.errors import Fenced, OtherDisk, OtherModel, UnknownNode
from kvactors.actors.cluster.protocol.interfaces import Clock, Record
from kvactors.actors.cluster.protocol.locks import Locks
from kvactors.actors.cluster.protocol.records import Member, Settings

__all__ = ["Members"]


class Members:
    """In the `registry`, with leases of `settings` by the directory's `clock`. `changed` is called
    when a node has come or gone."""

    def __init__(
        self, registry: Registry, clock: Clock, settings: Settings, changed: Callable[[], None]
    ) -> None:
        self._registry, self._clock, self._settings = registry, clock, settings
        self._changed = changed
        self._locks = Locks()
        self.loads: dict[str, Load] = {}
        # As nodes said since this directory began.
        self._tokenizers: dict[str, str] = {}
        # When each was heard of last. After a restart that is not known: now is the latest.
        self._seen = dict.fromkeys(registry.members, clock.now())
        self._looked, self._late = clock.now(), False

    async def join(self, record: Record) -> Record:
        """A new incarnation of a node; those before it are over. The node has seen to that. Raises
        OtherDisk for one that has lost what it kept: nothing would be missed there; and OtherModel
        for one whose model says other tokens."""
        node, incarnation, disk = record["node"], record["incarnation"], record["disk"]
        async with self._locks.of(node):
            member = self._registry.members.get(node)
            if member is not None and member.disk != disk:
                raise OtherDisk(node=node)
            # Noted before it is written: another one may come meanwhile.
            self._tokenizers[node] = self._of_our_model(node, record)
            if member is None:
                fresh = Member(node, incarnation, disk)
                async with self._registry.coming:
                    await self._registry.note(members=[fresh], untold=[node])
            elif incarnation > member.incarnation:
                drained = member.draining and not member.leaving
                again = replace(member, incarnation=incarnation, fenced=False, leaving=False)
                await self._registry.note(members=[replace(again, draining=drained)])
            self.last(node, incarnation)
            self._seen[node] = self._clock.now()
        self._changed()
        return {"node": node, "incarnation": incarnation}

    def _of_our_model(self, node: str, record: Record) -> str:
        """The tokenizer that a node says it has, if it says so. Raises OtherModel."""
        tokenizer = str(record.get("tokenizer", ""))
        for other, theirs in self._tokenizers.items():
            differs = tokenizer and theirs and theirs != tokenizer
            there = other not in self._registry.members or self._registry.alive(other)
            if differs and other != node and there:
                raise OtherModel(node=node, other=other)
        return tokenizer

    async def renew(self, record: Record) -> Record:
        """Another lease from now on, unless the incarnation is over."""
        node = record["node"]
        async with self._locks.of(node):
            self.last(node, record["incarnation"])
            self._seen[node] = self._clock.now()
            self._tokenizers[node] = record.get("tokenizer", "")
            self.loads[node] = Load(**record["load"])
        return {}

    async def leave(self, record: Record) -> Record:
        """An incarnation is over: its node says so, and answers for nothing any more."""
        node = record["node"]
        async with self._locks.of(node):
            member = self.last(node, record["incarnation"])
            await self._registry.note(members=[replace(member, fenced=True)])
        self._changed()
        return {}

    async def drain(self, record: Record) -> Record:
        """All agents of a node go elsewhere, and none comes; or (not `on`) they may come again.
        `leaving`: until the node is back, unless a person has drained it."""
        node, on, leaving = record["node"], record["on"], record.get("leaving", False)
        async with self._locks.of(node):
            if node not in self._registry.members:
                raise UnknownNode(node=node)
            member = self._registry.members[node]
            if member.leaving or not (leaving and member.draining):
                member = replace(member, draining=on, leaving=on and leaving)
                await self._registry.note(members=[member])
        self._changed()
        return {}

    async def nodes(self, _: Record) -> Record:
        """Of each node: what is known of it."""
        return {name: member.to_record() for name, member in self._registry.members.items()}

    async def fence_silent(self) -> None:
        """Those whose lease has run out by every clock are over: written, then acted upon. Who
        looks late has stood still itself: what nodes said meanwhile is read before the next."""
        self._late = self._clock.now() - self._looked > self._settings.lease / 2 and not self._late
        for node in [] if self._late else list(self._registry.members):
            if self._silent(node):
                async with self._locks.of(node):
                    await self._fence(node)
        self._looked = self._clock.now()

    async def _fence(self, node: str) -> None:
        if self._silent(node):
            await self._registry.note(members=[replace(self._registry.members[node], fenced=True)])
            self._changed()

    def _silent(self, node: str) -> bool:
        longest = self._settings.lease * (1 + self._settings.skew)
        return self._registry.alive(node) and self._clock.now() - self._seen[node] > longest

    def last(self, node: str, incarnation: int) -> Member:
        """The node, if this incarnation is its last. Raises Fenced, UnknownNode."""
        member = self._registry.members.get(node)
        if member is None:
            raise UnknownNode(node=node)
        if member.incarnation != incarnation or member.fenced:
            raise Fenced(node=node, incarnation=incarnation, held=member.incarnation)
        return member

    def room(self) -> dict[str, Load]:
        """The nodes that take agents, and what they have."""
        owned = self._registry.owned
        taking = [node for node in self._registry.members if self._registry.takes(node)]
        return {n: replace(self.loads.get(n, Load()), agents=owned[n]) for n in taking}
