"""What a node stores and need not: copies of agents that are others' by now."""

from collections.abc import Awaitable, Callable

from kvactors.actors.cluster.protocol.errors import for_another_time
from kvactors.actors.cluster.protocol.interfaces import Host, Record, Transport
from kvactors.actors.cluster.protocol.locks import Locks
from kvactors.actors.cluster.protocol.node.notes import Notes
from kvactors.actors.cluster.protocol.node.replica import common, digests
from kvactors.actors.cluster.protocol.records import Settings

__all__ = ["Sweep"]

# Agents that the directory is asked about at once.
BATCH = 500
# So often in one round.
BATCHES = 2


class Sweep:
    """An orphan is a copy of an epoch that is over, of an agent that as many other nodes have as
    `settings` say. What its owner never had is set aside first: nothing stored is lost.

    The node is `name`, with what `host` stores and `notes` says it promised; the directory and
    owners are asked through `transport`. With an agent's lock of `locks`, `give_up` ends it here.
    `untold` is called where the directory does not know all of it: it could not be read before.
    """

    def __init__(
        self,
        name: str,
        transport: Transport,
        host: Host,
        notes: Notes,
        locks: Locks,
        *,
        settings: Settings,
        give_up: Callable[[str], Awaitable[None]],
        untold: Callable[[], object],
    ) -> None:
        self._settings, self._untold = settings, untold
        self._name, self._transport, self._give_up = name, transport, give_up
        self._host, self._notes, self._locks = host, notes, locks
        self._left: list[str] = []
        self._unnamed: dict[str, int] = {}

    async def round(self) -> None:
        """Look at what is stored here, at so much of it that the directory has time for others;
        what is left is for the next rounds. Then it is listed again."""
        if not self._left:
            self._left = sorted(await self._host.stored(), reverse=True)
            stored = set(self._left)
            self._unnamed = {a: epoch for a, epoch in self._unnamed.items() if a in stored}
        for _ in range(BATCHES):
            batch = [self._left.pop() for _ in range(min(BATCH, len(self._left)))]
            if batch:
                await self._look_at_all(batch)

    async def _look_at_all(self, agents: list[str]) -> None:
        places = await self._ask("directory", "whose", {"agents": agents})
        if len(places) < len(agents):
            self._untold()
        for agent, place in places.items():
            again = self._unnamed.pop(agent, None) == place["epoch"]
            with for_another_time():
                await self._look_at(agent, place, again=again)

    async def _look_at(self, agent: str, place: Record, *, again: bool) -> None:
        if self._is_orphan(agent, place):
            await self._remove(agent, place)
        elif self._is_unnamed(agent, place):
            await self._outdate(agent, place, again=again)

    def _is_orphan(self, agent: str, place: Record) -> bool:
        # What was promised in this epoch, or since, may be about to be named.
        over = self._notes.promised(agent) < place["epoch"]
        forgotten = place["node"] is None
        return over and (forgotten or (self._is_safe(place) and not self._is_mine(place)))

    def _is_safe(self, place: Record) -> bool:
        """As many nodes have it as should."""
        return place["replica"] is not None or self._settings.durable == "one"

    def _is_unnamed(self, agent: str, place: Record) -> bool:
        return self._notes.promised(agent) >= place["epoch"] and not self._is_mine(place)

    def _is_mine(self, place: Record) -> bool:
        return self._name in (place["node"], place["replica"], place["target"])

    async def _outdate(self, agent: str, place: Record, *, again: bool) -> None:
        """A copy that was begun and not named, twice: it never will be, in another epoch.
        Then it is an orphan."""
        self._unnamed[agent] = place["epoch"]
        if again:
            promised = self._notes.promised(agent)
            record = {"agent": agent, "epoch": place["epoch"], "promised": promised}
            await self._ask("directory", "outdate", record)

    async def _remove(self, agent: str, place: Record) -> None:
        async with self._locks.of(agent):
            if not self._is_orphan(agent, place):
                return
            await self._give_up(agent)
            if place["node"] is not None:
                theirs = await self._ask(place["node"], "prefix", {"agent": agent})
                mine = digests(await self._host.records(agent, 0))
                keep = common(mine, theirs["digests"])
                if keep < len(mine):
                    await self._host.set_aside(agent, keep)
            elif self._notes.promised(agent) == 0:
                # Another cluster's, or a system's: only its name was forgotten here.
                await self._host.set_aside(agent, 0)
            await self._host.forget(agent)

    async def _ask(self, to: str, method: str, record: Record) -> Record:
        return await self._transport.call(to, method, record, within=self._settings.call)
