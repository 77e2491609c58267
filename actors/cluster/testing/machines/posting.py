"""Outboxes of the simulated world, and whose messages leave through them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgpack  # type: ignore[import-untyped]

from kvactors.actors.cluster.protocol.client import Client
from kvactors.actors.cluster.protocol.errors import HostFailed
from kvactors.actors.cluster.protocol.interfaces import Clock, Letter, Record, Transport
from kvactors.actors.cluster.protocol.outbox import Outbox, Outgoing, Permit, anybody
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.actors.cluster.testing.machines.letters import LetterOracle, Life, Sent
from kvactors.actors.cluster.testing.machines.process import Process

__all__ = ["Post"]


class Post:
    """Of one `process`: over `transport`, by `clock`, in a cluster of these `settings`; owners are
    looked for for `seconds`. `oracle` sees what is sent and how it ends. `permit`: see Outbox."""

    def __init__(
        self,
        process: Process,
        transport: Transport,
        clock: Clock,
        settings: Settings,
        oracle: LetterOracle,
        *,
        seconds: float,
        permit: Permit = anybody,
    ) -> None:
        self._process, self._oracle = process, oracle
        watched = _Watched(transport, process.name, oracle)
        client = Client(watched, clock, settings)
        self._outbox = Outbox(watched, client, clock, settings, seconds, permit)

    def died(self) -> bool:
        """Whether its process has: nobody is told anything any more."""
        return not self._process.alive

    def sends(self, life: Life, to: str, generations: int) -> asyncio.Future[None]:
        """A message of `life` `to` an agent, which causes others for so many `generations`. Done
        when it is taken, or never will be."""
        return self._post(life, to, generations, None, asks=False)

    async def asks(self, life: Life, to: str, generations: int, seconds: float | None) -> None:
        """One that is answered: return then, or after so many `seconds`. See `sends` for `life`,
        `to` and `generations`."""
        done = self._post(life, to, generations, seconds, asks=True)
        if seconds is not None:
            self._process.later(seconds, _finish, done)
        await done

    def _post(
        self, life: Life, to: str, generations: int, seconds: float | None, *, asks: bool
    ) -> asyncio.Future[None]:
        sent = self._oracle.sends(life, to, asks=asks)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ended(body: bytes | None, error: Exception | None) -> None:
            if self._process.alive:
                answer = None if body is None else msgpack.unpackb(body)
                self._oracle.told(sent.key, _kind(sent, answer, error), answer)
                _finish(done)

        letter = Letter(life.agent, msgpack.packb([sent.key, generations]), asks, seconds)
        self._outbox.post(Outgoing(to, letter, ended, lambda: not life.ended))
        return done


class _Watched:
    """The `transport` of the process `name`: the `oracle` sees each message that leaves."""

    def __init__(self, transport: Transport, name: str, oracle: LetterOracle) -> None:
        self._transport, self._name, self._oracle = transport, name, oracle

    async def call(
        self, to: str, method: str, record: Record, *, within: float | None = None
    ) -> Record:
        """See Transport: `to` answers to `method` of `record` `within` so long."""
        self._look(method, record)
        return await self._transport.call(to, method, record, within=within)

    async def stream(self, to: str, method: str, record: Record) -> AsyncIterator[Record]:
        """See Transport: items of `to` for `method` of `record`."""
        self._look(method, record)
        async for item in self._transport.stream(to, method, record):
            yield item

    def _look(self, method: str, record: Record) -> None:
        for _, _, letters in record["mail"] if method == "mail" else ():
            for letter in letters:
                self._oracle.leaves(msgpack.unpackb(letter[1])[0], self._name)


def _kind(sent: Sent, answer: Any, error: Exception | None) -> str:
    """How a message that was `sent` ended, with an `answer` or an `error`, in a word or two."""
    if error is None:
        return "taken" if not sent.asks else "ended" if answer is None else "answered"
    kind = error.fields["kind"] if isinstance(error, HostFailed) else type(error).__name__
    in_flight = kind == "Undelivered" and "was lost with a message" in str(error)
    return "Undelivered in flight" if in_flight else str(kind)


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
