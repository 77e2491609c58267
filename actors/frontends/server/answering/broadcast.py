"""Broadcast: one turn's events, for everyone who asked for it. The event loop's thread alone."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Self

from kvactors.actors.frontends.server.exchange.events import Ended, Event, Opened, Reuse

__all__ = ["Broadcast"]


class Broadcast:
    """Events from the first on, for readers that come at any time. `opened` is set before any.

    It is made for one reader, and `join` announces another: who is about to read keeps it running.
    `on_abandoned` is called when the last one leaves before
    the end, `on_delivered` when a reader has had it: until then the answer is worth keeping.
    """

    def __init__(
        self, on_abandoned: Callable[[], object], on_delivered: Callable[[], object]
    ) -> None:
        self._on_abandoned = on_abandoned
        self._on_delivered = on_delivered
        self._events: list[Event] = []
        self._more = asyncio.Event()
        self._readers = 0
        self._coming = 1
        self.opened = Opened("", "", 0, Reuse("new"))
        self.error: BaseException | None = None
        self.ended = False
        self.abandoned = False
        """Whether all readers left before its end: it only has to be cleared up."""
        self._over = asyncio.Event()

    def join(self) -> Self:
        """Expect one reader more."""
        self._coming += 1
        return self

    def clear(self) -> None:
        """Its agent is free."""
        self._over.set()

    async def cleared(self) -> None:
        """Return when its agent is free."""
        await self._over.wait()

    def add(self, event: Event) -> None:
        """Tell every reader."""
        self._events.append(event)
        self._wake()

    def end(self, error: BaseException | None = None) -> None:
        """Nothing follows; `error` is what readers get instead of an end."""
        self.error, self.ended = error, True
        self._wake()

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        self._readers += 1
        self._coming = max(0, self._coming - 1)
        place = 0
        try:
            while True:
                while place < len(self._events):
                    place += 1
                    yield self._events[place - 1]
                if self.ended:
                    break
                await self._more.wait()
            self._on_delivered()
            if self.error is not None:
                raise self.error
        finally:
            self._readers -= 1
            if not (self._readers or self._coming or self.ended):
                self.abandoned = True
                self._on_abandoned()

    @property
    def complete(self) -> bool:
        """Whether it ended as it should: its last event says so."""
        return bool(self._events) and isinstance(self._events[-1], Ended)

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()
