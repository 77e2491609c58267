"""Waiting for something, and not for ever."""

import asyncio
from typing import Any

from kvactors.actors.cluster.protocol.errors import ClusterError, Unanswered
from kvactors.actors.cluster.protocol.interfaces import Clock

__all__ = ["Tries", "done_soon"]

FIRST_WAIT = 0.02
LONGEST_WAIT = 1.0


async def done_soon(clock: Clock, what: asyncio.Future[Any], seconds: float) -> bool:
    """Whether `what` is done, once it is or so many `seconds` of the `clock` are over. One loop."""
    waiting = asyncio.ensure_future(clock.sleep(seconds))
    try:
        both: list[asyncio.Future[Any]] = [what, waiting]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return what.done()


class Tries:
    """Until when to reach `what` is tried again, for `seconds` by `clock`, and how long is waited
    before."""

    def __init__(self, clock: Clock, what: str, seconds: float) -> None:
        self._clock, self._what, self._seconds = clock, what, seconds
        self._until = clock.now() + seconds
        self._wait = FIRST_WAIT

    def left(self) -> float:
        """Seconds."""
        return self._until - self._clock.now()

    async def wait(self, error: ClusterError) -> None:
        """Return when it is time to try again. Raises Unanswered when it is too late for that."""
        if self.left() <= self._wait:
            raise Unanswered(agent=self._what, seconds=self._seconds, reason=str(error)) from error
        await self._clock.sleep(self._wait)
        self._wait = min(2 * self._wait, LONGEST_WAIT)
