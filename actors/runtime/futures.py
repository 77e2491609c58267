"""Futures that settle exactly once, refuse to block a pool thread, and can be awaited."""

import logging
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pykka import ThreadingFuture, Timeout

from kvactors.core.errors import BlockingCall, KvactorsError, SystemStopped

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "ReplyFuture",
    "WaitTimeout",
    "add_driver",
    "all_of",
    "check_may_block",
    "check_outside_of_actors",
    "drive",
    "mark_pool_thread",
    "must_not_wait",
    "remove_driver",
    "resolved",
    "runs_actors",
]

T = TypeVar("T")

logger = logging.getLogger("kvactors")

_thread = threading.local()


def mark_pool_thread(*, shared: bool) -> None:
    """Declare the calling thread one that runs actors; `shared`: more than one of them."""
    _thread.runs_actors, _thread.shared = True, shared


def runs_actors() -> bool:
    """Whether the calling thread runs actors, and callbacks of what they settle."""
    return getattr(_thread, "runs_actors", False)


def check_outside_of_actors() -> None:
    """Raise BlockingCall on any thread that runs actors: what it runs would wait for itself."""
    if runs_actors():
        raise BlockingCall("waiting for everything to end, inside of what must end, never ends")


def _on_pool_thread() -> bool:
    return getattr(_thread, "shared", False)


class Driver(Protocol):
    """What makes a world go on that waits for its user
    (`kvactors.actors.runtime.deterministic`)."""

    def drive(self, until: Callable[[], bool], timeout: float | None) -> None:
        """Go on until something is so, at most `timeout` seconds."""


_drivers: list[Driver] = []


def add_driver(driver: Driver) -> None:
    """Drive this world too whenever somebody waits."""
    _drivers.append(driver)


def remove_driver(driver: Driver) -> None:
    """Drive it no more."""
    if driver in _drivers:
        _drivers.remove(driver)


def drive(until: Callable[[], bool], timeout: float | None = None) -> None:
    """Before a thread waits for something: let worlds that need it go on until it is so."""
    for driver in _drivers:
        if not until():
            driver.drive(until, timeout)


def must_not_wait() -> bool:
    """Whether waiting on this thread would hold up others: it runs actors, or asyncio."""
    return _on_pool_thread() or _running_loop() is not None


def check_may_block() -> None:
    """Raise BlockingCall on a thread that runs actors: it may be the one that is awaited."""
    if _on_pool_thread():
        raise BlockingCall(
            "a blocking call inside an actor or a callback would stop other agents on this "
            "thread: await the future in an `async def on_message`, or send a message (tell) "
            "and handle the answer when it arrives"
        )


class WaitTimeout(KvactorsError, Timeout, TimeoutError):
    """A future was not settled in the time that it was waited for. What it is of goes on."""


class ReplyFuture(ThreadingFuture[T]):
    """A pykka future whose settling may race: the first wins, the others are told so.

    `get` on a pool thread raises BlockingCall unless the result is there: it would take
    the thread that other agents need, perhaps the very one that is awaited. `await` works in
    behaviours and under asyncio.
    """

    _callbacks: "list[Callable[[ReplyFuture[T]], object]] | None" = None

    @property
    def done(self) -> bool:
        """Whether a value or an error is there."""
        return self._result is not None

    @property
    def error(self) -> BaseException | None:
        """The error it was settled with, if it was."""
        if self._result is None or self._result.exc_info is None:
            return None
        return self._result.exc_info[1]

    def get(self, *, timeout: float | None = None) -> Any:
        """The value, or its error raised; WaitTimeout after `timeout` seconds."""
        if not self.done and self._get_hook is None:
            check_may_block()
            drive(lambda: self.done, timeout)
        try:
            return super().get(timeout=timeout)
        except Timeout as error:
            if self.done or isinstance(error, WaitTimeout):
                raise
            raise WaitTimeout(
                f"it took longer than the {timeout:g} s that were waited for it: it goes on, and "
                "can be waited for again"
            ) from None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, in another process, of what it was settled with: nothing settles that one."""
        if self._result is None:
            gone = SystemStopped("it was not settled when it was copied: ask the original")
            return _settled, (None, gone)
        return _settled, (self._result.value, self.error)

    def set(self, value: T | None = None) -> None:
        """Set the value. Raises queue.Full if the future was settled already."""
        super().set(value)
        self._call_back()

    def set_exception(self, exc_info: Any = None) -> None:
        """Set an error. Raises queue.Full if the future was settled already."""
        super().set_exception(exc_info or sys.exc_info())
        self._call_back()

    def resolve(self, value: T) -> bool:
        """Set the value; False if the future was settled already."""
        with self._condition:
            if self.done:
                return False
            super().set(value)
        self._call_back()
        return True

    def reject(self, error: BaseException) -> bool:
        """Set an error; False if the future was settled already."""
        with self._condition:
            if self.done:
                return False
            super().set_exception((type(error), error, error.__traceback__))
        self._call_back()
        return True

    def follow(self, other: "ReplyFuture[T]") -> None:
        """Settle as another future was, which is done."""
        error = other.error
        if error is None:
            self.resolve(other.get())
        else:
            self.reject(error)

    def on_done(self, callback: "Callable[[ReplyFuture[T]], object]") -> None:
        """Call back once it is settled, on whatever thread settles it; at once if it is.

        The callback must be quick; what it raises is logged.
        """
        with self._condition:
            if not self.done:
                self._callbacks = [*(self._callbacks or ()), callback]
                return
        self._call(callback)

    def __await__(self) -> Generator[Any, Any, T]:
        if not self.done and self._get_hook is None:
            loop = _running_loop()
            if loop is None:
                yield self  # To whoever runs the behaviour.
            else:
                yield from self._on_loop(loop).__await__()
        value: T = self.get()
        return value

    def _on_loop(self, loop: "asyncio.AbstractEventLoop") -> "asyncio.Future[None]":
        """An asyncio future that is done when this one is."""
        done: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            if not done.done():
                done.set_result(None)

        def call_soon(_: "ReplyFuture[T]") -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(tell)

        self.on_done(call_soon)
        return done

    def _call_back(self) -> None:
        with self._condition:
            callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            self._call(callback)

    def _call(self, callback: "Callable[[ReplyFuture[T]], object]") -> None:
        """Who settles a future is not to fail by what others do with it."""
        try:
            callback(self)
        except BaseException:
            logger.exception("a callback of a future raised")


def resolved() -> ReplyFuture[None]:
    """A future that is done."""
    future: ReplyFuture[None] = ReplyFuture()
    future.resolve(None)
    return future


def _settled(value: Any, error: BaseException | None) -> ReplyFuture[Any]:
    """What a future's copy is made of."""
    future: ReplyFuture[Any] = ReplyFuture()
    if error is None:
        future.resolve(value)
    else:
        future.reject(error)
    return future


def all_of(futures: Sequence[ReplyFuture[None]]) -> ReplyFuture[None]:
    """Resolves when all have, or fails as the first of them that failed."""
    whole: ReplyFuture[None] = ReplyFuture()
    lock, left = threading.Lock(), len(futures)

    def one_done(future: ReplyFuture[None]) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if future.error is not None:
            whole.reject(future.error)
        elif last:
            whole.resolve(None)

    for future in futures:
        future.on_done(one_done)
    return whole if futures else resolved()


def _running_loop() -> "asyncio.AbstractEventLoop | None":
    """The asyncio loop of this thread. Importing asyncio takes a tenth of a second: a program
    that has not done it runs no loop."""
    module = sys.modules.get("asyncio")
    if module is None:
        return None
    try:
        loop: asyncio.AbstractEventLoop = module.get_running_loop()
    except RuntimeError:
        return None
    return loop
