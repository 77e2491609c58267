"""Blocking work: what would hold up the threads that agents share runs on others."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from kvactors.actors.runtime.blocking import lend_thread, mark_pool_thread, waiting
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.core.errors import SystemStopped

__all__ = ["BlockingWork"]

logger = logging.getLogger(__name__)

AT_ONCE = 4
MOST = 1000
STOPPED = "the system is stopped"


class BlockingWork:
    """Each call has a thread for itself, AT_ONCE beside each other. Those that wait for somebody's
    answer are not counted, up to MOST: what they wait for may be a call that has not begun. Each
    calls `begin` before it counts as accepted, and `end` when it has ended, or is given up."""

    def __init__(self, begin: Callable[[], object], end: Callable[[], object]) -> None:
        self._begin = begin
        self._end = end
        self._lock = threading.Lock()
        self._queue: deque[tuple[Callable[[], Any], ReplyFuture[Any]]] = deque()
        self._counted = set[ReplyFuture[Any]]()
        self._threads = self._busy = 0
        self._closed = False

    def run(self, function: Callable[[], Any], *, here: bool) -> ReplyFuture[Any]:
        """A future of what the function returns or raises, or of SystemStopped; `here`: on the
        calling thread, on which the world goes on while it waits."""
        future: ReplyFuture[Any] = ReplyFuture()
        with self._lock:
            if self._closed:
                future.reject(SystemStopped(STOPPED))
                return future
            self._begin()
            self._counted.add(future)
            if not here:
                self._queue.append((function, future))
        if here:
            with waiting(may=True):
                self._work(function, future)
        else:
            self._begin_next()
        return future

    def close(self) -> None:
        """Begin nothing more; does not wait for what runs."""
        with self._lock:
            self._closed = True
        self._refuse(SystemStopped(STOPPED))

    def give_up(self) -> None:
        """What runs counts as ended: its thread, a daemon, is left to itself. What waits will not
        begin."""
        self._refuse(SystemStopped(STOPPED))
        with self._lock:
            left = list(self._counted)
        for future in left:
            future.reject(SystemStopped(STOPPED))
            self._ended(future)

    def rests(self) -> None:
        """A thread of a call begins to wait."""
        with self._lock:
            self._busy -= 1
        self._begin_next()

    def goes_on(self) -> None:
        """What it waited for is there."""
        with self._lock:
            self._busy += 1

    def _work(self, function: Callable[[], Any], future: ReplyFuture[Any]) -> None:
        try:
            future.resolve(function())
        except BaseException as error:
            future.reject(error)
        finally:
            self._ended(future)

    def _ended(self, future: ReplyFuture[Any]) -> None:
        """A call counts no more, if it did."""
        with self._lock:
            counted = future in self._counted
            self._counted.discard(future)
        if counted:
            self._end()

    def _begin_next(self) -> None:
        """Begin what waits, as far as there may be more at once. Where the machine has no thread
        for it, whoever runs begins it later; it fails if nobody does."""
        try:
            with self._lock:
                while self._queue and self._busy < AT_ONCE and self._threads < MOST:
                    call = self._queue[0]
                    thread = threading.Thread(
                        target=self._run, args=call, name="kvactors-blocking", daemon=True
                    )
                    thread.start()
                    self._queue.popleft()
                    self._threads, self._busy = self._threads + 1, self._busy + 1
        except (RuntimeError, MemoryError) as error:
            logger.warning("a thread for what blocks cannot be had: %s", error)
            if not self._busy:
                self._refuse(error)

    def _refuse(self, error: BaseException) -> None:
        """What waits will not begin."""
        with self._lock:
            left = list(self._queue)
            self._queue.clear()
        for _, future in left:
            future.reject(error)
            self._ended(future)

    def _run(self, function: Callable[[], Any], future: ReplyFuture[Any]) -> None:
        mark_pool_thread(shared=False)
        lend_thread(self)
        call: tuple[Callable[[], Any], ReplyFuture[Any]] | None = (function, future)
        while call is not None:
            self._work(*call)
            with self._lock:
                # There may be no other thread for what waits.
                call = self._queue.popleft() if self._queue and self._busy <= AT_ONCE else None
                if call is None:
                    self._threads, self._busy = self._threads - 1, self._busy - 1
