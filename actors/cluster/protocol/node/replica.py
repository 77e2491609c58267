"""A node as replica: it holds what the owner of an epoch has, and no lower epoch is listened to."""

from collections.abc import Awaitable, Callable
from hashlib import blake2b

from kvactors.actors.cluster.protocol.errors import LedgerGap, StaleEpoch
from kvactors.actors.cluster.protocol.interfaces import Host, Record
from kvactors.actors.cluster.protocol.locks import Locks
from kvactors.actors.cluster.protocol.node.notes import Notes

__all__ = ["Replica", "common", "digests"]


class Replica:
    """It stores in `host`, and promises in `notes`. `locks` are the node's: one agent's matters are
    done one after the other. `give_up` is called where the node was the owner before."""

    def __init__(
        self, host: Host, notes: Notes, locks: Locks, give_up: Callable[[str], Awaitable[None]]
    ) -> None:
        self._host, self._notes, self._locks, self._give_up = host, notes, locks, give_up
        # In which epoch an agent's ledger was made a beginning of its owner's. In memory: after a
        # restart the owner has to ask again.
        self._aligned: dict[str, int] = {}

    async def align(self, record: Record) -> Record:
        """Become a replica in this epoch: set aside what the owner's ledger, known by `digests` of
        its records, does not begin with, then promise to listen to no lower epoch.

        In an epoch that was promised nothing is set aside: the ledger is a beginning of the
        owner's, and where it is longer than `digests`, that is because they come late.
        """
        agent, epoch, theirs = record["agent"], record["epoch"], record["digests"]
        self._refuse_older(agent, epoch)
        async with self._locks.of(agent):
            self._refuse_older(agent, epoch)
            await self._give_up(agent)
            mine = digests(await self._host.records(agent, 0))
            keep = common(mine, theirs)
            if keep < len(mine) and epoch > self._notes.promised(agent):
                await self._host.set_aside(agent, keep)
            await self._notes.promise(agent, epoch)
            self._aligned[agent] = epoch
        return {"have": keep}

    async def replicate(self, record: Record) -> Record:
        """Records from the `start`-th on, synced on return: how many there are. Raises LedgerGap
        where the owner has to align first."""
        agent = record["agent"]
        self._refuse_older(agent, record["epoch"])
        async with self._locks.of(agent):
            self._refuse_unaligned(agent, record["epoch"])
            have = await self._host.store(agent, record["start"], record["records"])
        return {"have": have}

    async def prefix(self, record: Record) -> Record:
        """What another node compares its copy with."""
        return {"digests": digests(await self._host.records(record["agent"], 0))}

    async def digests(self, record: Record) -> Record:
        """Of the pieces of KV that are here."""
        return {"have": await self._host.digests(record["agent"])}

    async def piece(self, record: Record) -> Record:
        """One more piece of KV."""
        agent = record["agent"]
        async with self._locks.of(agent):
            self._refuse_unaligned(agent, record["epoch"])
            await self._host.store_piece(agent, record["piece"])
        return {}

    def _refuse_older(self, agent: str, epoch: int) -> None:
        # Before the lock too: who holds it may be waiting for the one that is refused here.
        if epoch < (held := self._notes.promised(agent)):
            raise StaleEpoch(agent=agent, epoch=epoch, held=held)

    def _refuse_unaligned(self, agent: str, epoch: int) -> None:
        self._refuse_older(agent, epoch)
        if self._aligned.get(agent) != epoch:
            raise LedgerGap(agent=agent, have=0)


def digests(records: list[bytes]) -> list[bytes]:
    """What two ledgers are compared by."""
    return [blake2b(record, digest_size=16).digest() for record in records]


def common(mine: list[bytes], theirs: list[bytes]) -> int:
    """How many records both begin with."""
    for index, (one, other) in enumerate(zip(mine, theirs, strict=False)):
        if one != other:
            return index
    return min(len(mine), len(theirs))
