"""Waiting for something, and not for ever."""

import asyncio
import math
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
    """How long to reach `what` is tried again, by `clock`, and how long is waited before: `seconds`
    from the first error on, and anew after an attempt that was `lasting`, in seconds, as it was
    reached then. Where none is they count from now on."""

    def __init__(self, clock: Clock, what: str, seconds: float, lasting: float | None) -> None:
        self._clock, self._what, self._seconds = clock, what, seconds
        self._begun = clock.now()
        self._until = self._begun + seconds if lasting is None else None
        self._lasting = math.inf if lasting is None else lasting
        self._wait = FIRST_WAIT

    def left(self) -> float:
        """Seconds."""
        now = self._clock.now()
        if self._until is None or now - self._begun > self._lasting:
            return self._seconds
        return self._until - now

    async def wait(self, error: ClusterError) -> None:
        """Return when it is time to try again. Raises Unanswered when it is too late for that."""
        left = self.left()
        if left <= self._wait:
            raise Unanswered(agent=self._what, seconds=self._seconds, reason=str(error)) from error
        self._until = self._clock.now() + left
        await self._clock.sleep(self._wait)
        self._wait = min(2 * self._wait, LONGEST_WAIT)
        self._begun = self._clock.now()
