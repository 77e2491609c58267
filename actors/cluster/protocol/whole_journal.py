"""A journal that may be written anew while it is written to. On the loop of whoever has it."""

from collections.abc import Iterable
from itertools import chain

from kvactors.actors.cluster.protocol.errors import WrongRecord
from kvactors.actors.cluster.protocol.interfaces import Journal, Record

__all__ = ["WholeJournal"]


class WholeJournal:
    """A Journal over another one, whose records have no other `keys`: what is on its way there when
    that is written anew, and in no state yet, is in it too."""

    def __init__(self, journal: Journal, *keys: str) -> None:
        self._journal = journal
        self._keys = keys
        self._coming = dict[object, Record]()

    def load(self) -> list[Record]:
        """See Journal. Raises WrongRecord for other keys: written anew, it would lack them."""
        records = self._journal.load()
        if odd := {key for record in records for key in record}.difference(self._keys):
            raise WrongRecord(
                reason=f"a newer kvactors wrote {sorted(odd)} to the journal of this directory or "
                "node: upgrade kvactors to use it (it is left as it is)"
            )
        return records

    async def append(self, record: Record) -> None:
        """See Journal."""
        coming = object()
        self._coming[coming] = record
        try:
            await self._journal.append(record)
        finally:
            del self._coming[coming]

    async def replace(self, records: Iterable[Record]) -> None:
        """See Journal."""
        await self._journal.replace(chain(records, list(self._coming.values())))
