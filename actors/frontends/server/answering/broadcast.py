"""Broadcast: one turn's events, for everyone who asked for it. The event loop's thread alone."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from kvactors.actors.frontends.server.exchange.events import Ended, Event, Opened
from kvactors.core.errors import SystemStopped

__all__ = ["Broadcast", "Reading"]


class Broadcast:
    """Events from the first on, for readers that come at any time and ask for the same `key`.

    `on_abandoned` is called when the last reader leaves before the end, `on_delivered` when a
    reader has had it: until then the answer is worth keeping. `taken` has who answers, once that is
    known; `on_dropped` is called when nobody can ask for it any more.
    """

    def __init__(
        self,
        key: str,
        on_abandoned: "Callable[[Broadcast], object]",
        on_delivered: "Callable[[Broadcast], object]",
    ) -> None:
        self.key = key
        self._on_abandoned = on_abandoned
        self._on_delivered = on_delivered
        self._events: list[Event] = []
        self._more = asyncio.Event()
        self.taken: asyncio.Future[Opened] = asyncio.get_running_loop().create_future()
        self.on_dropped: Callable[[], object] = lambda: None
        self.readers = 0
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

    def fail(self, error: BaseException) -> None:
        """It ends with an `error`, for who waits to know who answers, too."""
        if isinstance(error, asyncio.CancelledError):
            # Its readers are not the ones that are cancelled.
            error = SystemStopped("the turn was ended before its answer was complete: ask again")
        if not self.taken.done():
            self.taken.set_exception(error)
            self.taken.exception()
        self.end(error)

    def leave(self) -> None:
        """A reader goes."""
        self.readers -= 1
        if not self.readers and not self.ended:
            self._on_abandoned(self)

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        place = 0
        while True:
            while place < len(self._events):
                place += 1
                yield self._events[place - 1]
            if self.ended:
                break
            await self._more.wait()
        self._on_delivered(self)
        if self.error is not None:
            raise self.error

    @property
    def complete(self) -> bool:
        """Whether it ended as it should: its last event says so."""
        return bool(self._events) and isinstance(self._events[-1], Ended)

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()


class Reading:
    """One reader of a `broadcast`, from when it is asked for: it leaves when its iteration ends,
    and when it is let go before it began. `opened` says who answers, once it was waited for."""

    opened: Opened

    def __init__(self, broadcast: Broadcast) -> None:
        self._broadcast = broadcast
        self._left = False
        broadcast.readers += 1

    async def wait(self) -> "Reading":
        """Itself, once it is known who answers. Raises what failed before."""
        self.opened = await asyncio.shield(self._broadcast.taken)
        return self

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        try:
            async for event in self._broadcast:
                yield event
        finally:
            self._leave()

    def __del__(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if not self._left:
            self._left = True
            self._broadcast.leave()
