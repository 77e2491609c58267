"""The directory: who owns which agent, which nodes have a lease, and what shall move where."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from kvactors.actors.cluster.protocol.directory.adoption import Adoption
from kvactors.actors.cluster.protocol.directory.caretaker import Caretaker
from kvactors.actors.cluster.protocol.directory.driver import Driver
from kvactors.actors.cluster.protocol.directory.members import Members
from kvactors.actors.cluster.protocol.directory.moves import Moves
from kvactors.actors.cluster.protocol.directory.placement import Load
from kvactors.actors.cluster.protocol.directory.places import Places
from kvactors.actors.cluster.protocol.directory.registry import Registry
from kvactors.actors.cluster.protocol.errors import ClusterError, WrongRecord
from kvactors.actors.cluster.protocol.interfaces import Clock, Journal, Record, Transport
from kvactors.actors.cluster.protocol.locks import Locks
from kvactors.actors.cluster.protocol.records import Settings

__all__ = ["Directory"]


class Directory:
    """One for a cluster. It answers from memory, and writes to its `journal` before it acts. Nodes
    are called through `transport`; `clock` says whose lease of `settings` has run out.

    After a failure of its disk `run` raises: start another one over the same journal.
    """

    def __init__(
        self, transport: Transport, clock: Clock, journal: Journal, settings: Settings
    ) -> None:
        self._clock, self._settings = clock, settings
        self.registry = Registry(journal)
        locks = Locks()
        self._members = Members(self.registry, clock, settings, self._changed)
        adoption = Adoption(
            self.registry, self._members, locks, self._changed, clock, settings=settings
        )
        places = Places(
            self.registry,
            self._members,
            locks,
            self._changed,
            refuse_unsure=adoption.refuse_unsure,
        )
        moves = Moves(
            self.registry, places, locks, transport, clock, settings=settings, begun=self._begun
        )
        self._driver = Driver(self.registry, places, moves, settings.moves)
        self._caretaker = Caretaker(
            self.registry, self._members, places, moves, transport, settings=settings
        )
        self._methods: dict[str, Callable[[Record], Awaitable[Record]]] = {
            "join": self._members.join,
            "renew": self._members.renew,
            "leave": self._members.leave,
            "drain": self._members.drain,
            "nodes": self._members.nodes,
            "find": places.find,
            "whose": places.whose,
            "found": adoption.found,
            "told": adoption.told,
            "claim": places.claim,
            "spawn": places.spawn,
            "offer": places.offer,
            "name": places.name,
            "outdate": places.outdate,
            "move": moves.move,
            "moved": moves.moved,
            "forget": moves.forget,
            "agents": self._agents,
            "stats": self._stats,
        }

    async def handle(self, method: str, record: Record) -> Record:
        """Answer a call."""
        self.registry.check()
        if method not in self._methods:
            raise WrongRecord(reason=f"the directory has no method {method!r}")
        answer = await self._methods[method](record)
        # It may have waited for a write that failed: a restart knows what that was.
        self.registry.check()
        return answer

    async def run(self) -> None:
        """Its rounds. Raises OSError when its journal failed."""
        # Apart: a fence waits for nobody, and a take-over does not wait for a move.
        rounds = (
            self._members.fence_silent,
            self._caretaker.round,
            self._driver.round,
            self.registry.compact,
        )
        await asyncio.gather(*map(self._again_and_again, rounds))
        raise self.registry.broken or OSError("the directory's journal")

    async def _again_and_again(self, round: Callable[[], Awaitable[None]]) -> None:
        while self.registry.broken is None:
            with suppress(ClusterError):
                await round()
            await self._clock.sleep(self._settings.lease / 6)

    def _changed(self) -> None:
        self._caretaker.look()

    def _begun(self, agent: str) -> None:
        self._caretaker.look()
        self._driver.begin(agent)

    async def _agents(self, record: Record) -> Record:
        """Up to `count` places of agents whose names follow `after`, in their order."""
        names = self.registry.names.page(record["after"], record["count"])
        return {name: self.registry.places[name].to_record() for name in names}

    async def _stats(self, _: Record) -> Record:
        """How many there are of all."""
        owned, kept = self.registry.owned, self.registry.kept
        return {
            "agents": len(self.registry.places),
            "moves": len(self.registry.moves),
            "nodes": {
                name: {
                    "alive": not member.fenced,
                    "draining": member.draining,
                    "agents": owned[name],
                    "replicas": kept[name],
                    "bytes": self._members.loads.get(name, Load()).bytes,
                    "waiting": self._members.loads.get(name, Load()).waiting,
                }
                for name, member in self.registry.members.items()
            },
        }
