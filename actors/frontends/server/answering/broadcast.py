"""Broadcast: one turn's events, for everyone who asked for it. The event loop's thread alone."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from kvactors.actors.frontends.server.exchange.events import Ended, Event, Opened, Reuse

__all__ = ["Broadcast"]


class Broadcast:
    """Events from the first on, for readers that come at any time. `opened` is set before any.

    `on_abandoned` is called when the last reader leaves before the end, `on_delivered` when a
    reader has had it: until then the answer is worth keeping.
    """

    def __init__(
        self, on_abandoned: Callable[[], object], on_delivered: Callable[[], object]
    ) -> None:
        self._on_abandoned = on_abandoned
        self._on_delivered = on_delivered
        self._events: list[Event] = []
        self._more = asyncio.Event()
        self._readers = 0
        self.opened = Opened("", "", 0, Reuse("new"))
        self.error: BaseException | None = None
        self.ended = False

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
            if not self._readers and not self.ended:
                self._on_abandoned()

    @property
    def complete(self) -> bool:
        """Whether it ended as it should: its last event says so."""
        return bool(self._events) and isinstance(self._events[-1], Ended)

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()
