"""An asyncio loop on a thread of its own, and futures of what runs there."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Generic, NoReturn, TypeVar

from kvactors.actors.runtime.blocking import check_may_block, mark_pool_thread
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.core.errors import BlockingCall, SystemStopped

__all__ = ["LoopThread", "OtherLoop", "Task", "check_may_wait", "refuse"]

T = TypeVar("T")


class Task(Generic[T]):
    """Something that runs on a loop. Any thread."""

    def __init__(self, running: "Future[T]") -> None:
        self.future: ReplyFuture[T] = ReplyFuture()
        self._running = running
        running.add_done_callback(self._settle)

    def cancel(self) -> None:
        """End it where it waits."""
        self._running.cancel()

    def _settle(self, running: "Future[T]") -> None:
        if running.cancelled():
            self.future.reject(SystemStopped("it was left before its end"))
        elif (error := running.exception()) is not None:
            self.future.reject(error)
        else:
            self.future.resolve(running.result())


class OtherLoop:
    """Runs coroutines for other threads on a `loop` that runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def begin(self, work: Coroutine[Any, Any, T]) -> Task[T]:
        """Let it run."""
        return Task(asyncio.run_coroutine_threadsafe(work, self.loop))

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Wait for it; WaitTimeout after `timeout` seconds. Raises BlockingCall inside an actor."""
        check_may_wait(work)
        value: T = self.begin(work).future.get(timeout=timeout)
        return value

    def stop(self) -> None:
        """Whoever began the loop ends it."""


class LoopThread(OtherLoop):
    """A loop of its own, on a thread of its own, until `stop`."""

    def __init__(self, name: str) -> None:
        super().__init__(asyncio.new_event_loop())
        self._lock, self._stopped = threading.Lock(), False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # Callbacks of futures come here: one that waited would wait for itself.
        mark_pool_thread(shared=True)
        self.loop.run_forever()

    def begin(self, work: Coroutine[Any, Any, T]) -> Task[T]:
        """Let it run. Raises SystemStopped once the loop is stopped: it would never end."""
        with self._lock:
            if self._stopped:
                refuse(work)
            return super().begin(work)

    def stop(self) -> None:
        """Cancel what runs, and end the thread. Twice is as good as once."""
        with self._lock:
            self._stopped = True
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(_cancel_all(), self.loop).result()
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
        self.loop.close()


def refuse(work: Coroutine[Any, Any, Any]) -> NoReturn:
    """Raise SystemStopped: `work` never begins where nobody is left to do it."""
    work.close()
    raise SystemStopped("this cluster was left: connect again")


def check_may_wait(work: Coroutine[Any, Any, Any]) -> None:
    """Raise BlockingCall where nobody may wait for `work`, which then never begins."""
    try:
        check_may_block()
    except BlockingCall:
        work.close()
        raise


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
