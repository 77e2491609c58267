"""Which agents of a node are in memory: begun when they are needed, ended when others are."""

from contextlib import suppress

from kvactors.actors.cluster.protocol.behaviours import Behaviours
from kvactors.actors.cluster.protocol.interfaces import Host, Record
from kvactors.actors.cluster.protocol.locks import Locks

__all__ = ["Serving"]


class Serving:
    """At most `limit` of those of `host`, but for the ones that are busy, as their `locks` and
    `behaviours` say; least recently used go first."""

    def __init__(self, host: Host, behaviours: Behaviours, locks: Locks, limit: int) -> None:
        self._host, self._locks, self._limit = host, locks, limit
        self._behaviours = behaviours
        # In the order of their use.
        self._served: dict[str, None] = {}

    def has(self, agent: str) -> bool:
        """Whether it is in memory, and about to stay there."""
        return agent in self._served

    async def begin(self, agent: str, options: Record) -> None:
        """With its lock held: it is in memory."""
        if agent not in self._served:
            try:
                await self._host.begin(agent, options)
            except Exception:
                # Its memory may be there without its behaviour, and nobody would end it.
                with suppress(Exception):
                    await self._host.end(agent)
                raise
        self._served.pop(agent, None)
        self._served[agent] = None
        await self._end_idle()

    async def end(self, agent: str) -> None:
        """With its lock held: it is not."""
        # Before it is: what comes for it meanwhile waits for its return.
        was = agent in self._served
        self._served.pop(agent, None)
        try:
            await self._host.end(agent)
        except BaseException:
            if was:
                self._served[agent] = None
            raise

    async def _end_idle(self) -> None:
        for agent in list(self._served):
            if len(self._served) <= self._limit:
                return
            # Nobody has its lock, so it is had at once.
            if not self._locks.busy(agent) and not self._behaviours.busy(agent, timers=True):
                # What is told of it cannot be stored just now: it stays.
                with suppress(Exception):
                    async with self._locks.of(agent):
                        await self.end(agent)
