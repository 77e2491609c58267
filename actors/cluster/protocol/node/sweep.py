"""What a node stores and need not: copies of agents that are others' by now."""

from kvactors.actors.cluster.protocol.interfaces import Host, Record, Transport
from kvactors.actors.cluster.protocol.locks import Locks
from kvactors.actors.cluster.protocol.node.notes import Notes
from kvactors.actors.cluster.protocol.node.replica import common, digests

__all__ = ["Sweep"]

# Agents that the directory is asked about at once.
BATCH = 500


class Sweep:
    """An orphan is a copy of an epoch that is over, of an agent that two other nodes have. What its
    owner never had is set aside first: nothing stored is lost."""

    def __init__(
        self, name: str, transport: Transport, host: Host, notes: Notes, locks: Locks
    ) -> None:
        self._name, self._transport = name, transport
        self._host, self._notes, self._locks = host, notes, locks

    async def round(self) -> None:
        """Look at all that is stored here."""
        stored = sorted(await self._host.stored())
        for start in range(0, len(stored), BATCH):
            record = {"agents": stored[start : start + BATCH]}
            places = await self._transport.call("directory", "whose", record)
            for agent, place in places.items():
                if self._is_orphan(agent, place):
                    await self._remove(agent, place)

    def _is_orphan(self, agent: str, place: Record) -> bool:
        # What was promised in this epoch, or since, may be about to be named.
        if self._notes.promised(agent) >= place["epoch"]:
            return False
        if place["node"] is None:
            return True
        mine = self._name in (place["node"], place["replica"], place["target"])
        return not mine and place["replica"] is not None

    async def _remove(self, agent: str, place: Record) -> None:
        async with self._locks.of(agent):
            if not self._is_orphan(agent, place):
                return
            if place["node"] is not None:
                theirs = await self._transport.call(place["node"], "prefix", {"agent": agent})
                mine = digests(await self._host.records(agent, 0))
                keep = common(mine, theirs["digests"])
                if keep < len(mine):
                    await self._host.set_aside(agent, keep)
            await self._host.end(agent)
            await self._host.forget(agent)
