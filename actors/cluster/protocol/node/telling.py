"""What a node has of agents that the directory does not know: told before anything is served."""

import asyncio
from collections.abc import Mapping

from kvactors.actors.cluster.protocol.errors import for_another_time
from kvactors.actors.cluster.protocol.interfaces import Clock, Host, Record, Transport
from kvactors.actors.cluster.protocol.node.lease import Lease
from kvactors.actors.cluster.protocol.node.notes import Notes
from kvactors.actors.cluster.protocol.records import Settings

__all__ = ["Telling"]

# Agents that the directory is asked about, and told of, at once.
BATCH = 500


class Telling:
    """Once for each incarnation of the node `name`, and `again`: what `host` stores, and `notes`
    promised, is said through `transport` until the directory knows a place for all of it. What came
    with a store that was restored, or another system's, has none. `clock` and `settings` say when
    it is said again. `spawned`: how agents of a restored store were spawned, as far as that is
    known."""

    def __init__(
        self,
        name: str,
        transport: Transport,
        clock: Clock,
        host: Host,
        notes: Notes,
        *,
        settings: Settings,
        spawned: Mapping[str, Record],
    ) -> None:
        self._name, self._transport, self._clock = name, transport, clock
        self._host, self._notes, self._settings = host, notes, settings
        self._spawned = spawned
        self._lease: Lease | None = None
        self._due = asyncio.Event()

    def begin(self, lease: Lease) -> None:
        """A new incarnation has joined."""
        self._lease = lease
        self.again()

    def again(self) -> None:
        """Something is stored that was not told."""
        if self._lease is not None:
            self._due.set()

    async def run(self) -> None:
        """Tell, until cancelled."""
        while True:
            await self._due.wait()
            lease = self._lease
            assert lease is not None
            with for_another_time():
                if await self._is_known(lease.incarnation) and lease is self._lease:
                    self._due.clear()
                    continue
            await self._clock.sleep(self._settings.lease / 4)

    async def _is_known(self, incarnation: int) -> bool:
        """Whether all has a place, and the directory has noted that."""
        me = {"node": self._name, "incarnation": incarnation}
        if unknown := await self._unknown():
            agents = sorted(unknown)
            for start in range(0, len(agents), BATCH):
                part = {agent: unknown[agent] for agent in agents[start : start + BATCH]}
                over = start + BATCH >= len(agents)
                await self._ask("found", {**me, "agents": part, "all": over})
            unknown = await self._unknown()
        if not unknown:
            await self._ask("told", me)
        return not unknown

    async def _unknown(self) -> dict[str, Record]:
        stored = {agent: count for agent, count in (await self._host.stored()).items() if count}
        agents = sorted(stored)
        known: set[str] = set()
        for start in range(0, len(agents), BATCH):
            known |= set(await self._ask("whose", {"agents": agents[start : start + BATCH]}))
        return {
            agent: {
                "epoch": self._notes.promised(agent),
                "records": count,
                "spawned": self._spawned.get(agent),
            }
            for agent, count in stored.items()
            if agent not in known
        }

    async def _ask(self, method: str, record: Record) -> Record:
        within = self._settings.call
        return await self._transport.call("directory", method, record, within=within)
