"""The recorder: keeps the latest events of a system in memory. Any thread."""

import itertools
import os
import time
from collections import deque

from kvactors.core.trace import TraceEvent

__all__ = ["DEFAULT_CAPACITY", "Recorder"]

# About 30 MB: half an hour of decoding.
DEFAULT_CAPACITY = 200_000


class Recorder:
    """A listener that keeps the latest `capacity` events and counts those that they displaced.

    Recording appends to a deque: no lock, nothing to wait for.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self.capacity = capacity
        self.pid = os.getpid()
        # Seconds since the epoch at which `time.perf_counter` was 0.
        self.epoch = time.time() - time.perf_counter()
        self._events: deque[TraceEvent] = deque(maxlen=capacity)
        self._count = itertools.count()
        self._seen = 0

    def __call__(self, event: TraceEvent) -> None:
        """Keep an event."""
        # A thread that is overtaken here may write a smaller number; the next event corrects it.
        self._seen = next(self._count) + 1
        self._events.append(event)

    @property
    def events(self) -> list[TraceEvent]:
        """What was kept, in order of time. Events of steps count where they end."""
        return sorted(self._events, key=lambda event: event.at)

    @property
    def dropped(self) -> int:
        """Events that were displaced by later ones."""
        return max(0, self._seen - self.capacity)
