"""Waiting for something, and not for ever."""

import asyncio
import math
from typing import Any

from kvactors.actors.cluster.protocol.errors import ClusterError, Unanswered
from kvactors.actors.cluster.protocol.interfaces import Clock

__all__ = ["Tries", "done_soon"]

FIRST_WAIT = 0.02
LONGEST_WAIT = 1.0
# Times that patience begins: so many nodes may be lost, each under a turn that went well. One under
# which more are lost may be why: no machine has the memory for it.
BEGINS = 4


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
    from the first error on, and anew, a few times, after an attempt that was `lasting`, in seconds,
    as it was reached then. Where none is they count from now on."""

    def __init__(self, clock: Clock, what: str, seconds: float, lasting: float | None) -> None:
        self._clock, self._what, self._seconds = clock, what, seconds
        self._until = clock.now() + seconds
        self._lasting = lasting or 0.0
        # Until the first error: that is when they begin, however soon it comes.
        self._begun = -math.inf
        self._begins = 0 if lasting is None else BEGINS
        self._wait = FIRST_WAIT

    def left(self) -> float:
        """Seconds."""
        now = self._clock.now()
        return self._seconds if self._anew(now) else self._until - now

    async def wait(self, error: ClusterError) -> None:
        """Return when it is time to try again. Raises Unanswered when it is too late for that."""
        now = self._clock.now()
        if self._anew(now):
            self._begins -= 1
            self._until = now + self._seconds
        if self._until - now <= self._wait:
            raise Unanswered(agent=self._what, seconds=self._seconds, reason=str(error)) from error
        await self._clock.sleep(self._wait)
        self._wait = min(2 * self._wait, LONGEST_WAIT)
        self._begun = self._clock.now()

    def _anew(self, now: float) -> bool:
        return self._begins > 0 and now - self._begun > self._lasting
