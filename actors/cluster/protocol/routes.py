"""What goes to one node: in one call whatever waits for it at the time. One loop."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from itertools import islice
from typing import Any

from kvactors.actors.cluster.protocol.client import PASSING
from kvactors.actors.cluster.protocol.errors import ClusterError, Unanswered
from kvactors.actors.cluster.protocol.interfaces import Clock, Letter, Record, Transport
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.core.errors import Undelivered

__all__ = ["Outgoing", "Route"]

LETTERS, BYTES = 1_000, 1 << 20
"""In one call, unless a single message has more."""
FLIGHTS = 4
"""Calls to one node at once: an agent that it has to bring into memory holds up one of them."""
PATIENT = 8
"""So many times as long as for other answers a node is waited for: it may have to load agents."""
GONE = "its node is gone"


def _always() -> bool:
    return True


def _nothing() -> None:
    """Nobody wants to know."""


@dataclass(slots=True, eq=False)
class Outgoing:
    """A `letter` to the agent `to`. `ended` is called once: with the answer (None where none is
    wanted: it is in the mailbox), or with why there is none. `lives` says whether who sent it is
    the same still; `left` is called when it waits no more, if it ever did."""

    to: str
    letter: Letter
    ended: Callable[[bytes | None, Exception | None], object]
    lives: Callable[[], bool] = _always
    left: Callable[[], object] = _nothing
    may: Callable[[], bool] = _always
    """Whether it may leave just now, or never: False. Raises what that waits for."""
    until: float | None = None


@dataclass(slots=True, eq=False)
class Group:
    """Of the line of one agent, found in this `epoch`, what goes with the next calls to a node;
    `done` when some of it was taken. Raises there what the rest waits for."""

    agent: str
    epoch: int
    line: deque[Outgoing]
    done: asyncio.Future[None]
    loaded: int = 0


class Route:
    """To one `node` over `transport`, by `clock`, in a cluster of these `settings`. `begin` lets a
    task run beside; `leave` is called with what waits no more; each call has a `heading`."""

    def __init__(
        self,
        node: str,
        transport: Transport,
        clock: Clock,
        settings: Settings,
        *,
        begin: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        leave: Callable[[Outgoing], object],
        heading: Callable[[], Record],
    ) -> None:
        self._node, self._transport, self._clock = node, transport, clock
        self._settings, self._begin = settings, begin
        self._leave, self._heading = leave, heading
        self._waiting: deque[Group] = deque()
        self._flights = 0
        self._heard = -float("inf")

    async def carry(self, agent: str, epoch: int, line: deque[Outgoing]) -> None:
        """Return when some of the `line` of `agent`, which was found here in `epoch`, was taken.
        Raises why none was: what is there still is nobody's."""
        group = Group(agent, epoch, line, asyncio.get_running_loop().create_future())
        self._waiting.append(group)
        if self._flights < FLIGHTS:
            self._flights += 1
            self._begin(self._fly())
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
        # Without a pause before they are sent.
        groups = [group for group in groups if self._may_leave(group)]
        if groups:
            await self._call(groups)

    def _may_leave(self, group: Group) -> bool:
        """Whether any of the `group` may: what never will has ended."""
        try:
            never = [one for one in islice(group.line, group.loaded) if not one.may()]
        except ClusterError as error:
            group.done.set_exception(error)
            return False
        for one in never:
            group.line.remove(one)
            group.loaded -= 1
            self._leave(one)
            reason = (
                f"{one.letter.sender!r} lives elsewhere: its message to {one.to!r} was not sent"
            )
            one.ended(None, Undelivered(reason))
        if not group.loaded:
            group.done.set_result(None)
        return group.loaded > 0

    async def _call(self, groups: list[Group]) -> None:
        sent = [list(islice(group.line, group.loaded)) for group in groups]
        items = self._items(groups, sent)
        try:
            first = await anext(items)
        except PASSING as error:
            self._lost(groups, error)
            return
        except Exception as error:
            for group in groups:
                group.done.set_exception(error)
            return
        self._heard = self._clock.now()
        waiting = self._settle(groups, sent, first)
        if waiting:
            begun = self._clock.now()
            reading = self._begin(self._read(items, waiting))
            # Also where it is cancelled before it begins.
            reading.add_done_callback(lambda _: self._unanswered(waiting, GONE, begun))

    async def _reach(self, agent: str) -> None:
        """Whether it answers at all is asked before anything is sent, unless it has just done so:
        what is never sent is certainly not taken."""
        if self._clock.now() - self._heard > self._settings.lease / 2:
            record, within = {"agent": agent}, self._settings.call
            await self._transport.call(self._node, "running", record, within=within)

    async def _items(
        self, groups: list[Group], sent: list[list[Outgoing]]
    ) -> AsyncIterator[Record]:
        """What the node says to what is `sent` of `groups`: first what it has taken, then
        answers."""
        now = self._clock.now()
        mail = [
            [group.agent, group.epoch, [_wire(one, now) for one in ones]]
            for group, ones in zip(groups, sent, strict=True)
        ]
        record = {**self._heading(), "mail": mail}
        if any(one.letter.asks for ones in sent for one in ones):
            async for item in self._transport.stream(self._node, "mail", record):
                yield item
        else:
            within = PATIENT * self._settings.call
            yield await self._transport.call(self._node, "mail", record, within=within)

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
                    self._leave(group.line.popleft())
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
        begun = self._clock.now()
        try:
            async for item in items:
                for number, body in item["answers"]:
                    waiting.pop(number).ended(body, None)
                lost = {number: waiting.pop(number) for number in item["lost"]}
                self._unanswered(lost, f"{self._node} has lost its agent", begun)
        except ClusterError as error:
            self._unanswered(waiting, str(error), begun)

    def _unanswered(self, waiting: dict[int, Outgoing], reason: str, begun: float) -> None:
        seconds = round(self._clock.now() - begun, 3)
        while waiting:
            _, one = waiting.popitem()
            one.ended(None, Unanswered(agent=one.to, seconds=seconds, reason=reason))

    def _lost(self, groups: list[Group], error: ClusterError) -> None:
        """Nobody knows what became of what was under way. What stands behind it was not sent."""
        self._heard = -float("inf")
        for group in groups:
            for _ in range(group.loaded):
                one = group.line.popleft()
                self._leave(one)
                reason = f"{self._node} was lost with a message to {one.to!r}: {error}"
                one.ended(None, Undelivered(reason))
            group.done.set_exception(error)


def _wire(outgoing: Outgoing, now: float) -> list[Any]:
    """Its letter, with the seconds that are left."""
    left = None if outgoing.until is None else outgoing.until - now
    return list(outgoing.letter.within(left))
