"""What a node must not forget: which disk it has, which incarnation it is, and the epochs it
promised to heed.
"""

from uuid import uuid4

from kvactors.actors.cluster.protocol.interfaces import Journal, Record
from kvactors.actors.cluster.protocol.whole_journal import WholeJournal

__all__ = ["Notes"]

# The journal is written anew where it has so many times the records that are needed.
WASTE = 4


class Notes:
    """Over the node's journal. What is noted is on disk before anyone acts upon it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = WholeJournal(journal, "incarnation", "disk", "promises")
        self._promises: dict[str, int] = {}
        self.incarnation, self.disk = 0, ""
        self._length = 0
        for record in self._journal.load():
            self._length += 1
            self.incarnation = max(self.incarnation, record.get("incarnation", 0))
            self.disk = record.get("disk", self.disk)
            for agent, epoch in record.get("promises", {}).items():
                self._promises[agent] = max(epoch, self.promised(agent))

    def promised(self, agent: str) -> int:
        """The highest epoch of the agent that this node has owned or been replica in."""
        return self._promises.get(agent, 0)

    async def promise(self, agent: str, epoch: int) -> None:
        """From now on, for ever, no lower epoch. Raises OSError."""
        if epoch > self.promised(agent):
            await self._note({"promises": {agent: epoch}})
            self._promises[agent] = max(epoch, self.promised(agent))

    async def incarnate(self, above: int) -> None:
        """A new incarnation, above this one and the one given. Raises OSError."""
        incarnation, disk = max(self.incarnation, above) + 1, self.disk or uuid4().hex
        await self._note({"incarnation": incarnation, "disk": disk})
        self.incarnation, self.disk = incarnation, disk

    async def compact(self) -> None:
        """Write the journal anew if most of it is of the past; what is noted meanwhile stands
        behind it. Raises OSError: then the old one stands, or the new."""
        if self._length > WASTE * len(self._promises) + 100:
            self._length = len(self._promises)
            state = {"incarnation": self.incarnation, "disk": self.disk}
            await self._journal.replace([{**state, "promises": dict(self._promises)}])

    async def _note(self, record: Record) -> None:
        await self._journal.append(record)
        self._length += 1
