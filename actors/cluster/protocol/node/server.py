"""A node: it serves the agents that are its own, and keeps replicas of others'."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from kvactors.actors.cluster.protocol.backups import Backups, NoBackups
from kvactors.actors.cluster.protocol.behaviours import Behaviours, NoBehaviours
from kvactors.actors.cluster.protocol.errors import (
    NotOwner,
    WrongRecord,
    for_another_time,
)
from kvactors.actors.cluster.protocol.interfaces import Clock, Host, Journal, Record, Transport
from kvactors.actors.cluster.protocol.locks import Locks
from kvactors.actors.cluster.protocol.node.cancels import Cancels
from kvactors.actors.cluster.protocol.node.forks import Forks
from kvactors.actors.cluster.protocol.node.lease import Lease, Membership
from kvactors.actors.cluster.protocol.node.leaving import Leaving
from kvactors.actors.cluster.protocol.node.mail import Mail
from kvactors.actors.cluster.protocol.node.notes import Notes
from kvactors.actors.cluster.protocol.node.owner import Held, Owner
from kvactors.actors.cluster.protocol.node.replica import Replica
from kvactors.actors.cluster.protocol.node.serving import Serving
from kvactors.actors.cluster.protocol.node.speaking import Speaking
from kvactors.actors.cluster.protocol.node.sweep import Sweep
from kvactors.actors.cluster.protocol.node.telling import Telling
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.core.errors import EngineDied

__all__ = ["Node"]

Emit = Callable[[Record], object]


class Node:
    """Called `name`, with the agents of `host`, their `behaviours` and `backups`. `run` keeps its
    lease of `settings`, by its `clock`, and notes it in `journal`; `handle` and `stream` answer
    calls, and others are called through `transport`, all on one loop.

    Of one agent one thing is done at a time; different agents do not wait for each other.
    """

    def __init__(
        self,
        name: str,
        transport: Transport,
        clock: Clock,
        journal: Journal,
        host: Host,
        *,
        settings: Settings,
        behaviours: Behaviours | None = None,
        backups: Backups | None = None,
    ) -> None:
        behaviours, backups = behaviours or NoBehaviours(), backups or NoBackups()
        self.name = name
        self._clock, self._host = clock, host
        self._settings = settings
        self._notes = Notes(journal)
        self._locks = Locks()
        self._serving = Serving(host, behaviours, self._locks, settings.served)
        self._owner = Owner(
            name, transport, clock, host, self._notes, settings, end=self._serving.end
        )
        self._telling = Telling(
            name, transport, clock, host, self._notes, settings=settings, spawned=backups.spawned
        )
        self._membership = Membership(
            name,
            transport,
            clock,
            host,
            self._notes,
            settings=settings,
            joined=self._joined,
        )
        self._replica = Replica(host, self._notes, self._locks, self._give_up)
        self._sweep = Sweep(
            name,
            transport,
            host,
            self._notes,
            self._locks,
            settings=settings,
            give_up=self._give_up,
            untold=self._telling.again,
        )
        self._forks = Forks(
            name,
            transport,
            host,
            self._owner,
            self._serving,
            locks=self._locks,
            settings=settings,
        )
        self.speaking = Speaking(self._owner, self._locks, self._give_up)
        self._mail = Mail(
            name,
            clock,
            behaviours,
            self._owner,
            self._forks,
            self._serving,
            locks=self._locks,
            settings=settings,
            speaking=self.speaking,
        )
        self._leaving = Leaving(
            self._owner, self._notes, self._locks, self._give_up, self._mail.shut
        )
        self._cancels = Cancels(host, self._owner, self._turn)
        self._turns: set[asyncio.Task[dict[str, Any]]] = set()
        host.on_saved(self._follow)
        mail, backup = self._mail.stream, backups.stream
        self._streams = {"turn": self._stream, "mail": mail, "backup": backup}
        self._methods: dict[str, Callable[[Record], Awaitable[Record]]] = {
            "turn": self._turn,
            "model": self._model,
            "running": self._cancels.running,
            "cancel": self._cancels.cancel,
            "mail": self._mail.take,
            "serve": self._mail.serve,
            "waits": self._mail.waits,
            "fork": self._forks.fork,
            "begin": self._forks.begin,
            "read": self._read,
            "cached": self._cached,
            "confirm": self._confirm,
            "mend": self._mend,
            "prepare": self._leaving.prepare,
            "release": self._leaving.release,
            "retire": self._leaving.retire,
            "prefix": self._replica.prefix,
            "align": self._replica.align,
            "replicate": self._replica.replicate,
            "digests": self._replica.digests,
            "piece": self._replica.piece,
        }

    async def handle(self, method: str, record: Record) -> Record:
        """Answer a call."""
        if method not in self._methods:
            raise WrongRecord(reason=f"a node has no method {method!r}")
        return await self._methods[method](record)

    def stream(self, method: str, record: Record) -> AsyncIterator[Record]:
        """Answer a call item by item."""
        if method not in self._streams:
            raise WrongRecord(reason=f"a node has no stream {method!r}")
        return self._streams[method](record)

    async def _stream(self, record: Record) -> AsyncIterator[Record]:
        """Tokens as they come, the answer, whether it is durable."""
        items: asyncio.Queue[Record | None] = asyncio.Queue()
        # It goes on where nobody listens any more: it may be in the ledger already.
        turn = asyncio.create_task(self._turn(record, items.put_nowait))
        self._turns.add(turn)

        def ended(turn: asyncio.Task[dict[str, Any]]) -> None:
            self._turns.discard(turn)
            items.put_nowait(None)
            if not turn.cancelled():
                # Or the loop would complain where nobody listens.
                turn.exception()

        turn.add_done_callback(ended)
        while (item := await items.get()) is not None:
            yield item
        yield {"durable": (await turn)["durable"]}

    async def begin(self) -> None:
        """Join, if the directory answers. Raises OtherDisk and OtherModel: it never will let this
        node in."""
        await self._membership.begin()

    async def run(self) -> None:
        """Join, tell, renew, sweep, until cancelled. Leaves, and raises EngineDied, where that has
        happened to the host: who runs this process ends it."""
        # Apart: a lease does not wait for a sweep, which waits for agents.
        rounds = (
            self._often(self._membership.beat, 1 / 4),
            self._telling.run(),
            self._often(self._sweep.round, 3 / 2),
            self._often(self._notes.compact, 3 / 2),
        )
        running = [asyncio.ensure_future(one) for one in rounds]
        try:
            await asyncio.gather(*running)
        except EngineDied:
            await self._membership.leave()
            raise
        finally:
            for one in running:
                one.cancel()

    async def leave(self) -> None:
        """Own nothing any more, and say so: nobody waits for the end of the lease. Not running."""
        await self._membership.leave()

    def _joined(self, lease: Lease) -> None:
        self._owner.begin(lease)
        self._telling.begin(lease)

    async def _often(self, round: Callable[[], Awaitable[None]], leases: float) -> None:
        while True:
            with for_another_time():
                await round()
            await self._clock.sleep(leases * self._settings.lease)

    # As owner

    async def _turn(self, record: Record, emit: Emit | None = None) -> dict[str, Any]:
        agent, request = record["agent"], record["request"]
        async with self._locks.of(agent):
            held = await self._forks.served(agent)
            with self._cancels.taking(agent, request) as taken:
                answer = await self._answer(agent, taken, emit)
            held.lease.check()
            given = self._given(held, answer)
            if emit is not None:
                emit(given)
            durable = await self._owner.commit(held)
            held.lease.check()
            return {**self._given(held, answer), "durable": durable}

    async def _answer(self, agent: str, request: Record, emit: Emit | None) -> Record:
        try:
            return await self._host.turn(agent, request, emit)
        except Exception:
            # What it failed with may be what this node ends with: another one takes the turn.
            self._owner.check()
            raise

    def _given(self, held: Held, answer: Record) -> dict[str, Any]:
        return {"answer": answer, "durable": None, "epoch": held.place.epoch, "node": self.name}

    async def _read(self, record: Record) -> Record:
        """What the ledger has, by now."""
        async with self._reading(record["agent"]) as held:
            records = await self._host.records(record["agent"], record["start"])
        return {"records": records, "epoch": held.place.epoch, "node": self.name}

    async def _model(self, record: Record) -> Record:
        model: Record = self._host.load()["model"]
        return model

    async def _cached(self, record: Record) -> Record:
        """Whether KV of a turn is on disk: once that is known."""
        async with self._reading(record["agent"]):
            cached = await self._host.cached(record["agent"], record["request"])
        return {"cached": cached}

    @asynccontextmanager
    async def _reading(self, agent: str) -> AsyncIterator[Held]:
        """No lock, so that a long turn does not hinder it: at the end the agent is this node's as
        it was at the beginning. Raises NotOwner, LeaseLost."""
        if (held := self._owner.current(agent)) is None or not held.whole:
            async with self._locks.of(agent):
                held = await self._forks.owned(agent)
        yield held
        held.lease.check()
        if self._owner.current(agent) is not held:
            raise NotOwner(agent=agent, node=self.name)

    async def _confirm(self, record: Record) -> Record:
        agent = record["agent"]
        async with self._locks.of(agent):
            held = await self._owner.own(agent)
            known = await self._host.knows(agent, record["request"])
            durable = known and await self._owner.commit(held)
            held.lease.check()
        return {"known": known, "durable": durable}

    async def _mend(self, record: Record) -> Record:
        """Make a new replica instead of `lost`, unless that was done."""
        agent, lost = record["agent"], record["lost"]
        async with self._locks.of(agent):
            held = await self._owner.own(agent)
            if held.place.replica == lost:
                await self._owner.replace(held, lost)
        return {}

    async def _give_up(self, agent: str) -> None:
        """With its lock held: it is not this node's, nor in its memory."""
        self._owner.drop(agent)
        await self._serving.end(agent)

    async def _follow(self, agent: str) -> None:
        """Its KV was written: the replica gets it too, in the background."""
        with for_another_time():
            held = self._owner.current(agent)
            if held is not None and held.peer is not None and held.peer.have is not None:
                await self._owner.copier.send_pieces(held.peer)
