"""What a node needs of whoever copies its store to an object store, and made it of such a copy."""

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from kvactors.actors.cluster.protocol.errors import WrongRecord
from kvactors.actors.cluster.protocol.interfaces import Record

__all__ = ["Backups", "NoBackups"]


class Backups(Protocol):
    """Of one host's store."""

    @property
    def spawned(self) -> Mapping[str, Record]:
        """How agents of the store were spawned in the cluster that it was restored from: of each
        its "group" and "options", as its place had them."""
        ...

    def stream(self, record: Record) -> AsyncIterator[Record]:
        """Copy what the object store at the "url" lacks of "agents" there, as they stand: an item
        for each. They need not be this node's any more: it has all that was durable when they
        were."""
        ...


class NoBackups:
    """There are none."""

    spawned: Mapping[str, Record] = {}

    async def stream(self, record: Record) -> AsyncIterator[Record]:
        """Raises WrongRecord, whatever the `record`."""
        raise WrongRecord(reason="this node makes no backups")
        yield {}
