"""A process's own clock."""

import asyncio
import time

__all__ = ["MonotonicClock"]

# The one that goes on while the machine sleeps, so that a lease which ended then has ended: Linux
# has one of its own for that, macOS's CLOCK_MONOTONIC does (and time.monotonic() does not).
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class MonotonicClock:
    """Seconds that never go back, and that count while the process is stopped. Any loop."""

    def now(self) -> float:
        """Seconds since some moment."""
        return time.clock_gettime(_CLOCK)

    async def sleep(self, seconds: float) -> None:
        """Return so much later."""
        await asyncio.sleep(seconds)
