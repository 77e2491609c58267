"""Messages on their way to agents of other nodes.

    those for one agent wait in a line, in order: its head is on its way, or waits for its owner
    those for one node go in one call, with whatever else waits for that node at the time

A message is sent again only where it is certain that nobody has taken it: a node said so (a full
mailbox, too, holds up its line), or it was never sent. One that was under way when its node was
lost is nobody's; its sender is told. Calls are numbered, and carry the epoch in which the owner was
found: one that comes twice, or behind what was sent after it, is refused there.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any
from uuid import uuid4

from kvactors.actors.cluster.protocol.client import PASSING, Client
from kvactors.actors.cluster.protocol.errors import AgentBusy, Unanswered
from kvactors.actors.cluster.protocol.interfaces import Clock, Record, Transport
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.actors.cluster.protocol.routes import Outgoing, Route
from kvactors.core.errors import MailboxFull, Undelivered

__all__ = ["Outbox", "Outgoing", "Permit", "anybody"]

MOST = 10_000
"""Messages that wait here at once."""
MOST_BYTES = 64 << 20
"""Of their bodies."""

Permit = Callable[[str | None, Callable[[], bool]], Callable[[], bool]]
"""For what a sender says now, whose life may be asked whether it lasts: what `Outgoing.may` is."""


def anybody(_sender: str | None, _lives: Callable[[], bool]) -> Callable[[], bool]:
    """A Permit of a process that is no node."""
    return lambda: True


class Outbox:
    """Sends over `transport` to the owners that `client` knows, by `clock`, in a cluster of these
    `settings`; an owner is looked for for `seconds`. `permit` says who may send. One loop."""

    def __init__(
        self,
        transport: Transport,
        client: Client,
        clock: Clock,
        settings: Settings,
        seconds: float,
        permit: Permit = anybody,
    ) -> None:
        self._transport, self._clock, self._settings = transport, clock, settings
        self._client, self._seconds, self._permit = client, seconds, permit
        self._name, self._numbers = uuid4().hex, count()
        self._lines: dict[str, deque[Outgoing]] = {}
        self._routes: dict[str, Route] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = self._bytes = 0
        self._closed: Exception | None = None

    def post(self, outgoing: Outgoing) -> None:
        """Take one more: in order with those to the same agent. It ends at once with MailboxFull
        where too many wait."""
        if self._closed is not None:
            outgoing.ended(None, self._closed)
        elif self._count >= MOST or self._bytes >= MOST_BYTES:
            full = f"{self._count} messages of {self._bytes} bytes wait to leave this process"
            outgoing.ended(None, MailboxFull(f"{full}: await what send returns"))
        else:
            self._put(outgoing)

    def _put(self, outgoing: Outgoing) -> None:
        if outgoing.letter.seconds is not None:
            outgoing.until = self._clock.now() + outgoing.letter.seconds
        outgoing.may = self._permit(outgoing.letter.sender, outgoing.lives)
        self._count += 1
        self._bytes += len(outgoing.letter.body)
        if (line := self._lines.get(outgoing.to)) is None:
            line = self._lines[outgoing.to] = deque()
            self._begin(self._drain(outgoing.to, line))
        line.append(outgoing)

    def close(self, error: Exception) -> None:
        """Take no more; those that wait, or are waited for, end with `error`."""
        self._closed = error
        for task in self._tasks:
            task.cancel()
        for line in list(self._lines.values()):
            self._end_all(line, error)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let this run beside, until it ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _leave(self, outgoing: Outgoing) -> None:
        """It waits here no more."""
        self._count -= 1
        self._bytes -= len(outgoing.letter.body)
        outgoing.left()

    async def _drain(self, agent: str, line: deque[Outgoing]) -> None:
        trying = self._client.tries(agent, self._seconds)
        while line:
            first = line[0]
            try:
                owner, epoch = await self._client.find(agent)
                await self._route(owner).carry(agent, epoch, line)
            except PASSING as error:
                if not isinstance(error, AgentBusy):
                    self._client.lost(agent)
                if not line or line[0] is not first:
                    trying = self._client.tries(agent, self._seconds)
                try:
                    await trying.wait(error)
                except Unanswered as late:
                    full = isinstance(error, AgentBusy)
                    self._end_all(line, (MailboxFull if full else Undelivered)(str(late)))
            except Exception as error:
                self._end_all(line, error)
            else:
                trying = self._client.tries(agent, self._seconds)
        del self._lines[agent]

    def _route(self, node: str) -> Route:
        if node not in self._routes:
            self._routes[node] = Route(
                node,
                self._transport,
                self._clock,
                self._settings,
                begin=self._begin,
                leave=self._leave,
                heading=self._heading,
            )
        return self._routes[node]

    def _heading(self) -> Record:
        """Of the next call."""
        return {"from": self._name, "number": next(self._numbers)}

    def _end_all(self, line: deque[Outgoing], error: Exception) -> None:
        while line:
            outgoing = line.popleft()
            self._leave(outgoing)
            outgoing.ended(None, error)
