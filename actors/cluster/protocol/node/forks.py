"""Agents that begin with the memory of others. Where a fork begins is written with its place: how
many records of which life of its parent, and their digest. What is written there never changes, as
ledgers grow at their ends: whoever owns the fork, now or after a failure, makes the same of it.
"""

from hashlib import blake2b
from typing import Any

from kvactors.actors.cluster.protocol.errors import ForkLost, UnknownAgent
from kvactors.actors.cluster.protocol.interfaces import Host, Record, Transport
from kvactors.actors.cluster.protocol.locks import Locks
from kvactors.actors.cluster.protocol.node.owner import Held, Owner
from kvactors.actors.cluster.protocol.node.replica import digests
from kvactors.actors.cluster.protocol.node.serving import Serving
from kvactors.actors.cluster.protocol.records import ADOPTED, FORK, Place, Settings

__all__ = ["Forks"]

# So many times as long as for an answer a node waits for another's ledger.
PATIENT = 4


class Forks:
    """Of the node `name`: what `owner` claims is whole before anyone sees it, in `host` and, for
    `serving`, in memory. Others are asked through `transport` for as long as `settings` say. Calls
    hold an agent's lock of `locks`; a fork's is taken while its parent's is held, never the other
    way round, as that one was there first."""

    def __init__(
        self,
        name: str,
        transport: Transport,
        host: Host,
        owner: Owner,
        serving: Serving,
        *,
        locks: Locks,
        settings: Settings,
    ) -> None:
        self._name, self._transport, self._host = name, transport, host
        self._owner, self._serving = owner, serving
        self._locks, self._settings = locks, settings

    async def owned(self, agent: str) -> Held:
        """With its lock held: it is this node's, and its ledger has what it begins with. Raises
        ForkLost, and what `Owner.own` raises."""
        held = await self._owner.own(agent)
        if not held.whole:
            await self._complete(agent, held.place.options[FORK])
            held.whole = True
        return held

    async def served(self, agent: str) -> Held:
        """With its lock held: and it is in memory."""
        held = await self.owned(agent)
        # What it is made of has all that its parent, or who is adopted, was spawned with.
        kept = {FORK, ADOPTED} & held.place.options.keys()
        options = {} if kept else held.place.options
        await self._serving.begin(agent, options)
        return held

    async def fork(self, record: Record) -> Record:
        """A new agent with the memory of this one: its place, new or that of the same request. It
        is there when `begin` says so. Raises AgentExists."""
        agent, child = record["agent"], record["child"]
        async with self._locks.of(agent):
            parent = await self.served(agent)
            begins = await self._beginning(parent, record["request"])
            # Where it can be: what dies with this node is not there to begin with.
            await self._owner.commit(parent)
            place = await self._place(parent.place, child, begins)
            if place.node == self._name and place.options[FORK] == begins:
                await self._copy(agent, child)
        return place.to_record()

    async def begin(self, record: Record) -> Record:
        """Return when an agent has all that it begins with: whether that is durable."""
        agent = record["agent"]
        async with self._locks.of(agent):
            held = await self.owned(agent)
            durable = await self._owner.commit(held)
            held.lease.check()
        return {"durable": durable}

    async def _beginning(self, parent: Held, request: str) -> dict[str, Any]:
        agent = parent.place.agent
        if not (records := await self._host.records(agent, 0)):
            # The first record says how it was spawned, though it be of nothing.
            await self._host.turn(agent, {"id": request, "kind": "withdraw"}, None)
            records = await self._host.records(agent, 0)
        parent.lease.check()
        return {
            "of": agent,
            "born": parent.place.born,
            "records": len(records),
            "digest": _digest(records),
            "request": request,
        }

    async def _place(self, parent: Place, child: str, begins: Record) -> Place:
        record = {"agent": child, "group": parent.group, "options": {FORK: begins}}
        record["node"] = self._name
        return Place.from_record(await self._ask("directory", "spawn", record))

    async def _copy(self, agent: str, child: str) -> None:
        """With the parent's lock held: what is here, with its KV."""
        async with self._locks.of(child):
            held = await self._owner.own(child)
            if not held.whole:
                await self._host.fork(agent, child)
            await self.served(child)

    async def _complete(self, agent: str, begins: Record) -> None:
        have = len(await self._host.records(agent, 0))
        if have < begins["records"]:
            records = await self._of_parent(agent, begins)
            await self._serving.end(agent)
            await self._host.store(agent, have, records[have:], begins["of"])

    async def _of_parent(self, agent: str, begins: Record) -> list[bytes]:
        parent = begins["of"]
        lost = ForkLost(agent=agent, of=parent)
        try:
            place = await self._ask("directory", "find", {"agent": parent})
        except UnknownAgent as error:
            raise lost from error
        found = await self._ask(place["node"], "read", {"agent": parent, "start": 0})
        records = list(found["records"][: begins["records"]])
        if place["born"] != begins["born"] or _digest(records) != begins["digest"]:
            raise lost
        return records

    async def _ask(self, to: str, method: str, record: Record) -> Record:
        within = PATIENT * self._settings.call
        return await self._transport.call(to, method, record, within=within)


def _digest(records: list[bytes]) -> bytes:
    return blake2b(b"".join(digests(records)), digest_size=16).digest()
