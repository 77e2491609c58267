"""Deterministic mode: one thread runs everything, in an order that a seed draws.

Actors of all kinds share the one MLX thread, a message at a time; which actor is next is drawn.
The world moves only while its user waits (`get`, `wait_idle`, a stream), and stops as soon as
what is waited for is there: with one user thread, the same seed and the same calls give the
same interleaving. Time is virtual: when nothing can run, it jumps to the next timer.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from random import Random

from kvactors.actors.runtime.blocking import add_driver, remove_driver, wait_on, waiting
from kvactors.actors.runtime.dispatcher import Dispatcher
from kvactors.actors.runtime.mailbox import Runnable
from kvactors.actors.runtime.timer import Deadline, Timer

__all__ = ["CountingClock", "SeededDispatcher", "VirtualTimer"]


class CountingClock:
    """A clock that goes on by a millisecond whenever it is read."""

    def __init__(self) -> None:
        self._reads = itertools.count()

    def __call__(self) -> float:
        """Seconds."""
        return next(self._reads) / 1000


class VirtualTimer(Timer):
    """A timer whose time passes only when it is told to, on the thread that tells it. It comes to
    what was cancelled, too, as to anything else."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    def after(self, seconds: float, callback: Callable[[], object]) -> Deadline:
        """Call back once virtual time has come so far."""
        with self._changed:
            return Deadline(callback) if self._closed else self._push(self._now + seconds, callback)

    def let_pass(self, seconds: float) -> None:
        """Let so many seconds pass: whatever becomes due in them is called, in order."""
        end = self._now + seconds
        while self._next_within(end):
            self.advance()
        self._now = end

    def _next_within(self, end: float) -> bool:
        with self._changed:
            return bool(self._due) and self._due[0][0] <= end

    def advance(self) -> bool:
        """Jump to the next timer and call it; False if there is none."""
        with self._changed:
            if not self._due:
                return False
            self._now, _, deadline = heapq.heappop(self._due)
        deadline.come()
        return True


# Messages that a world handles before others on the thread have their turn.
AT_ONCE = 256


class _Going:
    """A world that goes on for somebody, batch by batch, until one of them says that it is `over`:
    on one `thread`, which other systems of the process use, too."""

    def __init__(self, batch: Callable[[], bool], thread: Dispatcher) -> None:
        self.over = threading.Event()
        self._batch = batch
        self._thread = thread

    def run_batch(self) -> None:
        """Go on. On the one thread."""
        if self._batch():
            self.over.set()
        else:
            self._thread.schedule(self)


class SeededDispatcher(Dispatcher):
    """Runs actors on the `thread` of another dispatcher, one message of one actor at a time, in an
    order that `seed` draws; when none has any, `timer` jumps to what is due next."""

    batch = 1

    def __init__(self, seed: int, timer: VirtualTimer, thread: Dispatcher) -> None:
        super().__init__("kvactors-deterministic", 0)
        self._random = Random(seed)
        self._timer = timer
        self._thread = thread
        self._waiting: list[Runnable] = []
        self._lock = threading.RLock()  # As that of a mailbox.
        self._thread_id: int | None = None
        add_driver(self)

    def schedule(self, actor: Runnable) -> None:
        """Let an actor that has messages take part in the draw."""
        with self._lock:
            self._waiting.append(actor)

    def drive(self, until: Callable[[], bool], timeout: float | None) -> None:
        """Let the world go on until something is so, nothing can happen any more, or `timeout`
        real seconds have passed. On the user's thread, or in blocking work on the one thread."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if threading.get_ident() == self._thread_id:
            with waiting(may=False):
                while not self._go_on(until, deadline):
                    pass
            return
        going = _Going(lambda: self._batch(until, deadline), self._thread)
        self._thread.schedule(going)
        wait_on(going.over)

    def _batch(self, until: Callable[[], bool], deadline: float | None) -> bool:
        self._thread_id = threading.get_ident()
        over = self._go_on(until, deadline)
        self._thread_id = None
        return over

    def _go_on(self, until: Callable[[], bool], deadline: float | None) -> bool:
        """Do the next AT_ONCE things; whether that was all."""
        for _ in range(AT_ONCE):
            if until() or not (self._run_one() or self._timer.advance()):
                return True
            if deadline is not None and time.monotonic() > deadline:
                return True
        return False

    def close(self, timeout: float | None = None) -> None:
        """Handle what is left; nothing is driven any more."""
        self.drive(lambda: not self._waiting, timeout)
        remove_driver(self)

    def _run_one(self) -> bool:
        with self._lock:
            if not self._waiting:
                return False
            actor = self._waiting.pop(self._random.randrange(len(self._waiting)))
        actor.run_batch()
        return True
