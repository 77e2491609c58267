"""Blocking work: what would hold up the threads that agents share runs on others."""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future as Done
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kvactors.actors.runtime.blocking import mark_pool_thread, waiting
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.core.errors import SystemStopped

__all__ = ["BlockingWork"]

THREADS = 4
STOPPED = "the system is stopped"


class BlockingWork:
    """A few threads, begun when there is something to do. Each call calls `begin` before it
    counts as accepted, and `end` when it has ended."""

    def __init__(self, begin: Callable[[], object], end: Callable[[], object]) -> None:
        self._begin = begin
        self._end = end
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False

    def run(self, function: Callable[[], Any], *, here: bool) -> ReplyFuture[Any]:
        """A future of what the function returns or raises, or of SystemStopped; `here`: on the
        calling thread, on which the world goes on while it waits."""
        future: ReplyFuture[Any] = ReplyFuture()

        def work() -> None:
            try:
                future.resolve(function())
            except BaseException as error:
                future.reject(error)
            finally:
                self._end()

        def ended(done: Done[None]) -> None:
            if done.cancelled():
                future.reject(SystemStopped(STOPPED))
                self._end()

        with self._lock:
            if self._closed:
                future.reject(SystemStopped(STOPPED))
                return future
            self._begin()
            if not here:
                if self._threads is None:
                    mark = functools.partial(mark_pool_thread, shared=False)
                    self._threads = ThreadPoolExecutor(THREADS, "kvactors-blocking", mark)
                self._threads.submit(work).add_done_callback(ended)
        if here:
            with waiting(may=True):
                work()
        return future

    def close(self) -> None:
        """Begin nothing more; does not wait for what runs."""
        with self._lock:
            self._closed = True
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)
