"""Messages on their way to agents of other nodes.

    those for one agent wait in a line, in order: its head is on its way, or waits for its owner
    those for one node go in one call, with whatever else waits for that node at the time

A message is sent again only where it is certain that nobody has taken it: a node said so (a full
mailbox, too, holds up its line), or it was never sent. One that was under way when its node was
lost is nobody's; its sender is told.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from itertools import islice
from typing import Any

from kvactors.actors.cluster.protocol.client import PASSING, Client
from kvactors.actors.cluster.protocol.errors import AgentBusy, ClusterError, Unanswered
from kvactors.actors.cluster.protocol.interfaces import Clock, Letter, Record, Transport
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.core.errors import MailboxFull, Undelivered

__all__ = ["Outbox", "Outgoing"]

MOST = 10_000
"""Messages that wait here at once."""
MOST_BYTES = 64 << 20
"""Of their bodies."""
LETTERS, BYTES = 1_000, 1 << 20
"""In one call, unless a single message has more."""
FLIGHTS = 4
"""Calls to one node at once: an agent that it has to bring into memory holds up one of them."""
PATIENT = 8
"""So many times as long as for other answers a node is waited for: it may have to load agents."""
GONE = "its node is gone"


@dataclass(slots=True, eq=False)
class Outgoing:
    """A `letter` to the agent `to`. `ended` is called once: with the answer (None where none is
    wanted: it is in the mailbox), or with why there is none."""

    to: str
    letter: Letter
    ended: Callable[[bytes | None, Exception | None], object]
    until: float | None = None


@dataclass(slots=True, eq=False)
class Group:
    """Of the line of one agent what goes with the next calls to a node; `done` when some of it was
    taken. Raises there what the rest waits for."""

    agent: str
    line: deque[Outgoing]
    done: asyncio.Future[None]
    loaded: int = 0


class Outbox:
    """Sends over `transport` to the owners that `client` knows, by `clock`, in a cluster of these
    `settings`; an owner is looked for for `seconds`. `permit` raises LeaseLost where nothing may be
    sent just now. One loop."""

    def __init__(
        self,
        transport: Transport,
        client: Client,
        clock: Clock,
        settings: Settings,
        seconds: float,
        permit: Callable[[], object] = lambda: None,
    ) -> None:
        self.transport, self.clock, self.settings, self.permit = transport, clock, settings, permit
        self._client, self._seconds = client, seconds
        self._lines: dict[str, deque[Outgoing]] = {}
        self._routes: dict[str, _Route] = {}
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
            if outgoing.letter.seconds is not None:
                outgoing.until = self.clock.now() + outgoing.letter.seconds
            self._count += 1
            self._bytes += len(outgoing.letter.body)
            if (line := self._lines.get(outgoing.to)) is None:
                line = self._lines[outgoing.to] = deque()
                self.begin(self._drain(outgoing.to, line))
            line.append(outgoing)

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let this run beside, until it ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self, error: Exception) -> None:
        """Take no more; those that wait, or are waited for, end with `error`."""
        self._closed = error
        for task in self._tasks:
            task.cancel()
        for line in list(self._lines.values()):
            self._end_all(line, error)

    def leave(self, line: deque[Outgoing]) -> Outgoing:
        """The first of a `line` waits here no more."""
        outgoing = line.popleft()
        self._count -= 1
        self._bytes -= len(outgoing.letter.body)
        return outgoing

    async def _drain(self, agent: str, line: deque[Outgoing]) -> None:
        trying = self._client.tries(agent, self._seconds)
        while line:
            first = line[0]
            try:
                owner = await self._client.owner(agent)
                await self._route(owner).carry(agent, line)
            except PASSING as error:
                if not isinstance(error, AgentBusy):
                    self._client.lost(agent)
                if not line or line[0] is not first:
                    trying = self._client.tries(agent, self._seconds)
                try:
                    await trying.wait(error)
                except Unanswered as late:
                    self._end_all(line, Undelivered(str(late)))
            except Exception as error:
                self._end_all(line, error)
            else:
                trying = self._client.tries(agent, self._seconds)
        del self._lines[agent]

    def _route(self, node: str) -> "_Route":
        if node not in self._routes:
            self._routes[node] = _Route(node, self)
        return self._routes[node]

    def _end_all(self, line: deque[Outgoing], error: Exception) -> None:
        while line:
            self.leave(line).ended(None, error)


class _Route:
    """What goes to one `node`."""

    def __init__(self, node: str, outbox: Outbox) -> None:
        self._node, self._outbox = node, outbox
        self._waiting: deque[Group] = deque()
        self._flights = 0
        self._heard = -float("inf")

    async def carry(self, agent: str, line: deque[Outgoing]) -> None:
        """Return when some of the `line` of `agent` was taken. Raises why none was: what is there
        still is nobody's."""
        group = Group(agent, line, asyncio.get_running_loop().create_future())
        self._waiting.append(group)
        if self._flights < FLIGHTS:
            self._flights += 1
            self._outbox.begin(self._fly())
        await group.done

    async def _fly(self) -> None:
        try:
            while self._waiting:
                await self._send(self._loaded())
        finally:
            self._flights -= 1

    def _loaded(self) -> list[Group]:
        """As many as go in one call, in order."""
        groups: list[Group] = []
        letters = size = 0
        while self._waiting and letters < LETTERS and size < BYTES:
            groups.append(group := self._waiting.popleft())
            group.loaded = 0
            for outgoing in islice(group.line, LETTERS - letters):
                if group.loaded and size >= BYTES:
                    break
                group.loaded += 1
                size += len(outgoing.letter.body)
            letters += group.loaded
        return groups

    async def _send(self, groups: list[Group]) -> None:
        try:
            await self._reach(groups[0].agent)
        except Exception as error:
            for group in groups:
                group.done.set_exception(error)
            return
        sent = [list(islice(group.line, group.loaded)) for group in groups]
        items = self._items(sent)
        try:
            first = await anext(items)
        except PASSING as error:
            self._lost(groups, error)
            return
        except Exception as error:
            for group in groups:
                group.done.set_exception(error)
            return
        self._heard = self._outbox.clock.now()
        waiting = self._settle(groups, sent, first)
        if waiting:
            begun = self._outbox.clock.now()
            reading = self._outbox.begin(self._read(items, waiting))
            # Also where it is cancelled before it begins.
            reading.add_done_callback(lambda _: self._unanswered(waiting, GONE, begun))

    async def _reach(self, agent: str) -> None:
        """Whether it answers at all is asked before anything is sent, unless it has just done so:
        what is never sent is certainly not taken."""
        self._outbox.permit()
        settings = self._outbox.settings
        if self._outbox.clock.now() - self._heard > settings.lease / 2:
            record = {"agent": agent}
            within = settings.call
            await self._outbox.transport.call(self._node, "running", record, within=within)
            self._outbox.permit()

    async def _items(self, sent: list[list[Outgoing]]) -> AsyncIterator[Record]:
        """What the node says: first what it has taken, then answers."""
        now = self._outbox.clock.now()
        mail = [[group[0].to, [_wire(one, now) for one in group]] for group in sent]
        transport, within = self._outbox.transport, PATIENT * self._outbox.settings.call
        if any(one.letter.asks for group in sent for one in group):
            async for item in transport.stream(self._node, "mail", {"mail": mail}):
                yield item
        else:
            yield await transport.call(self._node, "mail", {"mail": mail}, within=within)

    def _settle(
        self, groups: list[Group], sent: list[list[Outgoing]], first: Record
    ) -> dict[int, Outgoing]:
        """End what the `first` item says of the `groups` that were `sent`; those whose answers are
        waited for, by the number that they have in the call."""
        refused = dict(first["refused"])
        waiting: dict[int, Outgoing] = {}
        number = 0
        for group, outgoing, (taken, error) in zip(groups, sent, first["groups"], strict=True):
            for place, one in enumerate(outgoing):
                if place < taken:
                    self._outbox.leave(group.line)
                    if number in refused:
                        one.ended(None, ClusterError.from_record(refused[number]))
                    elif one.letter.asks:
                        waiting[number] = one
                    else:
                        one.ended(None, None)
                number += 1
            if error is None:
                group.done.set_result(None)
            else:
                group.done.set_exception(ClusterError.from_record(error))
        return waiting

    async def _read(self, items: AsyncIterator[Record], waiting: dict[int, Outgoing]) -> None:
        begun = self._outbox.clock.now()
        try:
            async for item in items:
                for number, body in item["answers"]:
                    waiting.pop(number).ended(body, None)
        except ClusterError as error:
            self._unanswered(waiting, str(error), begun)

    def _unanswered(self, waiting: dict[int, Outgoing], reason: str, begun: float) -> None:
        seconds = round(self._outbox.clock.now() - begun, 3)
        while waiting:
            _, one = waiting.popitem()
            one.ended(None, Unanswered(agent=one.to, seconds=seconds, reason=reason))

    def _lost(self, groups: list[Group], error: ClusterError) -> None:
        """Nobody knows what became of what was under way. What stands behind it was not sent."""
        self._heard = -float("inf")
        for group in groups:
            for _ in range(group.loaded):
                one = self._outbox.leave(group.line)
                reason = f"{self._node} was lost with a message to {one.to!r}: {error}"
                one.ended(None, Undelivered(reason))
            group.done.set_exception(error)


def _wire(outgoing: Outgoing, now: float) -> list[Any]:
    """Its letter, with the seconds that are left."""
    sender, body, asks, _ = outgoing.letter
    return [sender, body, asks, None if outgoing.until is None else outgoing.until - now]
