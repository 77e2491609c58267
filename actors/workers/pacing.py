"""Pace: a save takes a small share of the processors while somebody reads tokens as they come.

A token that is decoded keeps every core busy, and its threads wait for the slowest: what a save
takes of one core, the token takes longer. So the save rests, and takes longer itself.
"""

import time
from collections.abc import Callable

__all__ = ["Pace"]

# Seconds of rest for each second of CPU time; and at most for one group of saves.
REST = 64
LONGEST_DELAY = 2.0
# Seconds after which it is looked again whether somebody waits for the save.
NAP = 0.025


class Pace:
    """Rests whenever it is called, as long as the thread has worked for since; for one group of
    saves, on the thread that writes it. `hurried` says whether there is no time to rest; `sleep`
    takes seconds, `used` gives the thread's CPU seconds."""

    def __init__(
        self,
        hurried: Callable[[], bool],
        sleep: Callable[[float], object] = time.sleep,
        used: Callable[[], float] = time.thread_time,
    ) -> None:
        self._hurried = hurried
        self._sleep = sleep
        self._used = used
        self._seen = used()
        self._left = LONGEST_DELAY

    def __call__(self) -> None:
        """Rest, unless somebody waits."""
        rest = min(self._left, REST * (self._used() - self._seen))
        while rest > 0 and not self._hurried():
            nap = min(NAP, rest)
            self._sleep(nap)
            rest -= nap
            self._left -= nap
        self._seen = self._used()
