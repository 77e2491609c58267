"""Deadlines: one thread that calls back at given moments, for any number of turns."""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

from kvactors.actors.runtime.blocking import mark_pool_thread

__all__ = ["Timer"]

logger = logging.getLogger(__name__)

# Seconds; what a condition may wait is bounded by the platform.
LONGEST_WAIT = 3600.0


class Timer:
    """Calls `callback()` once `seconds` have passed; callbacks must be quick. Any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._closed = False
        self._thread: threading.Thread | None = None

    def now(self) -> float:
        """Seconds of its clock."""
        return time.monotonic()

    def after(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call back once, on the timer's thread, `seconds` from now."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="kvactors-timer", daemon=True
                )
                self._thread.start()
            moment = time.monotonic() + seconds
            heapq.heappush(self._due, (moment, next(self._order), callback))
            self._changed.notify()

    def close(self) -> None:
        """Call nothing back any more and end the thread."""
        with self._changed:
            self._closed = True
            self._due.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        mark_pool_thread(shared=True)
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    if self._closed:
                        return
                    wait = LONGEST_WAIT
                    if self._due:
                        wait = min(wait, self._due[0][0] - time.monotonic())
                    self._changed.wait(wait)
                _, _, callback = heapq.heappop(self._due)
            try:
                callback()
            except Exception:
                logger.exception("a deadline's callback failed")
