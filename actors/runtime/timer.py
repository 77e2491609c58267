"""Deadlines: one thread that calls back at given moments, for any number of turns."""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from kvactors.actors.runtime.blocking import mark_pool_thread
from kvactors.actors.runtime.futures import ReplyFuture

__all__ = ["Deadline", "Timer"]

logger = logging.getLogger(__name__)

# Seconds; what a condition may wait is bounded by the platform.
LONGEST_WAIT = 3600.0
# Fewer deadlines are not worth a look at which of them were cancelled.
FEW = 100


class Deadline:
    """What a timer will `call`, unless it is cancelled. Any thread."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self._call: Callable[[], object] | None = call

    @property
    def cancelled(self) -> bool:
        """Whether nothing will be called."""
        return self._call is None

    def cancel(self) -> None:
        """Let go of what it would call."""
        self._call = None

    def until(self, settled: ReplyFuture[Any]) -> None:
        """Cancel it once a future is `settled`."""
        settled.on_done(lambda _: self.cancel())

    def come(self) -> None:
        """Call what it is for; what that raises is logged."""
        try:
            if (call := self._call) is not None:
                call()
        except Exception:
            logger.exception("a deadline's callback failed")


class Timer:
    """Calls `callback()` once `seconds` have passed; callbacks must be quick. Any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Deadline]] = []
        self._room = FEW
        self._order = itertools.count()
        self._closed = False
        self._thread: threading.Thread | None = None

    def now(self) -> float:
        """Seconds of its clock."""
        return time.monotonic()

    def after(self, seconds: float, callback: Callable[[], object]) -> Deadline:
        """Call back once, on the timer's thread, `seconds` from now."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="kvactors-timer", daemon=True
                )
                self._thread.start()
            if len(self._due) >= self._room:
                self._drop_cancelled()
            deadline = self._push(time.monotonic() + seconds, callback)
            self._changed.notify()
            return deadline

    def _push(self, moment: float, callback: Callable[[], object]) -> Deadline:
        deadline = Deadline(callback)
        entry = (moment, next(self._order), deadline)
        heapq.heappush(self._due, entry)
        return deadline

    def _drop_cancelled(self) -> None:
        """Again when there are twice as many as are left. What garbage is collected meanwhile may
        add others."""
        due, self._due = self._due, []
        for entry in due:
            if not entry[2].cancelled:
                heapq.heappush(self._due, entry)
        self._room = max(FEW, 2 * len(self._due))

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
                _, _, deadline = heapq.heappop(self._due)
            deadline.come()
