"""Futures that settle exactly once, refuse to block a pool thread, and can be awaited."""

import functools
import queue
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from pykka import Future, Timeout

from kvactors.actors.runtime.blocking import check_may_block, drive, resting, running_loop, wait_on
from kvactors.actors.runtime.callbacks import call_back, on_loop, unless_done
from kvactors.core.errors import InvalidInput, KvactorsError, SystemStopped
from kvactors.core.numbers import number

__all__ = ["ReplyFuture", "WaitTimeout", "all_of", "resolved"]

T = TypeVar("T")
J = TypeVar("J")
M = TypeVar("M")
R = TypeVar("R")


class WaitTimeout(KvactorsError, Timeout, TimeoutError):
    """A future was not settled in the time that it was waited for. What it is of goes on."""


class _Settled(NamedTuple):
    """What a future was settled with, and the traceback that its error had then."""

    value: Any = None
    error: BaseException | None = None
    traceback: TracebackType | None = None


class _Source(Future[T]):
    """What other futures are made of. Whoever settles this one calls the functions, which must be
    quick; what they raise is the error of the future that they are for."""

    @property
    def hooked(self) -> bool:
        """Whether only `get` finds out what it is: it is never done."""
        return self._get_hook is not None

    def map(self, func: Callable[[T], M]) -> "ReplyFuture[M]":
        """A future of what `func` makes of the value."""
        return _derived([self], lambda values: func(*values))

    def join(self: Future[Any], *futures: Future[Any]) -> "ReplyFuture[Iterable[Any]]":
        """A future of the list of this one's value and those of the others."""
        return _derived([self, *futures], list)

    def filter(self: Future[Iterable[J]], func: Callable[[J], bool]) -> "ReplyFuture[Iterable[J]]":
        """A future of the list of those items of the value for which `func` is true."""
        return _derived([self], lambda values: list(filter(func, *values)))

    def reduce(self: Future[Iterable[J]], func: Callable[[R, J], R], *args: R) -> "ReplyFuture[R]":
        """A future of the value's items reduced to one by `func`, beginning with `args`."""
        return _derived([self], lambda values: functools.reduce(func, *values, *args))


class ReplyFuture(_Source[T]):
    """A pykka future whose settling may race: the first wins, the others are told so.

    `get` on a pool thread raises BlockingCall unless the result is there: it would take
    the thread that other agents need, perhaps the very one that is awaited. `await` works in
    behaviours and under asyncio. Every message has some, and few are waited for by a thread: what
    that takes is made then (bench/LOG.md).
    """

    def __init__(self) -> None:
        super().__init__()
        # Whoever holds it may be collecting garbage, which may settle this.
        self._lock = threading.RLock()
        self._result: _Settled | None = None
        self._callbacks: list[Callable[[ReplyFuture[T]], object]] = []
        self._waited: threading.Event | None = None

    @property
    def done(self) -> bool:
        """Whether a value or an error is there."""
        return self._result is not None

    @property
    def error(self) -> BaseException | None:
        """The error it was settled with, if it was."""
        return None if self._result is None else self._result.error

    def get(self, *, timeout: float | None = None) -> Any:
        """The value, or its error raised; WaitTimeout after `timeout` seconds. Raises InvalidInput
        for what is no number of seconds."""
        if timeout is not None and number(timeout) is None:
            raise InvalidInput(f"timeout must be seconds, not {timeout!r:.80}")
        if self._get_hook is not None:
            return self._from_hook(timeout)
        if self._result is None:
            check_may_block()
            drive(lambda: self.done, timeout)
            self._wait(timeout)
        assert self._result is not None
        value, error, traceback = self._result
        if error is not None:
            # Or each time that it is raised makes it longer.
            raise error.with_traceback(traceback)
        return value

    def _from_hook(self, timeout: float | None) -> Any:
        try:
            return super().get(timeout=timeout)
        except Timeout as error:
            if timeout is None or isinstance(error, WaitTimeout):
                raise
            raise _late(timeout) from None

    def _wait(self, timeout: float | None) -> None:
        with self._lock:
            if self.done:
                return
            if self._waited is None:
                self._waited = threading.Event()
        with resting():
            there = wait_on(self._waited, timeout and min(timeout, threading.TIMEOUT_MAX))
        if not there:
            raise _late(timeout)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, in another process, of what it was settled with: nothing settles that one."""
        if self._result is None:
            gone = SystemStopped("it was not settled when it was copied: ask the original")
            return _settled, (None, gone)
        return _settled, (self._result.value, self._result.error)

    def set(self, value: T | None = None) -> None:
        """Set the value. Raises queue.Full if the future was settled already."""
        self._settle_once(_Settled(value))

    def set_exception(self, exc_info: Any = None) -> None:
        """Set an error. Raises queue.Full if the future was settled already."""
        _, error, traceback = exc_info or sys.exc_info()
        self._settle_once(_Settled(None, error, traceback))

    def set_get_hook(self, func: Any) -> None:
        """Let `get` call this. Raises queue.Full if the future was settled already."""
        with self._lock:
            if self.done:
                raise queue.Full
            super().set_get_hook(func)

    def resolve(self, value: T) -> bool:
        """Set the value; False if the future was settled already."""
        return self._settle(_Settled(value))

    def reject(self, error: BaseException) -> bool:
        """Set an error; False if the future was settled already."""
        return self._settle(_Settled(None, error, error.__traceback__))

    def _settle_once(self, result: _Settled) -> None:
        if self._get_hook is not None or not self._settle(result):
            raise queue.Full

    def _settle(self, result: _Settled) -> bool:
        with self._lock:
            if self._result is not None:
                return False
            self._result = result
            # Nobody adds to these any more, nor takes any back.
            callbacks, self._callbacks = self._callbacks, []
        if self._waited is not None:
            self._waited.set()
        for callback in callbacks:
            call_back(callback, self)
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
        with self._lock:
            if self._result is None:
                self._callbacks.append(callback)
                return
        call_back(callback, self)

    def forget(self, callback: "Callable[[ReplyFuture[T]], object]") -> None:
        """Do not call back any more; one that it is too late for goes on."""
        with self._lock, suppress(ValueError):
            self._callbacks.remove(callback)

    def __await__(self) -> Generator[Any, Any, T]:
        if not self.done and self._get_hook is None:
            loop = running_loop()
            if loop is None:
                yield self  # To whoever runs the behaviour.
            else:
                yield from on_loop(loop, self).__await__()
        value: T = self.get()
        return value


def _late(timeout: float | None) -> WaitTimeout:
    return WaitTimeout(
        f"it took longer than the {timeout:g} s that were waited for it: it goes on, and can be "
        "waited for again"
    )


def _settled(value: Any, error: BaseException | None) -> ReplyFuture[Any]:
    """What a future's copy is made of."""
    future: ReplyFuture[Any] = ReplyFuture()
    if error is None:
        future.resolve(value)
    else:
        future.reject(error)
    return future


_DONE = _settled(None, None)


def resolved() -> ReplyFuture[None]:
    """A future that is done: always the same, as nothing changes it."""
    return _DONE


def all_of(futures: Sequence[ReplyFuture[Any]]) -> ReplyFuture[None]:
    """Resolves when all have, or fails as the first of them that failed."""
    whole: ReplyFuture[None] = ReplyFuture()
    lock, left = threading.Lock(), len(futures)

    def one_done(future: ReplyFuture[Any]) -> None:
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


class _Derived(ReplyFuture[T]):
    """What is made of `sources`: who waits for it waits for these, and may wait for itself."""

    def __init__(self, sources: Sequence[ReplyFuture[Any]]) -> None:
        super().__init__()
        self._sources = sources

    def get(self, *, timeout: float | None = None) -> Any:
        """The value, or its error raised; pykka.Timeout after `timeout` seconds."""
        for source in self._open():
            with unless_done(source):
                source.get(timeout=timeout)
        return super().get(timeout=timeout)

    def __await__(self) -> Generator[Any, Any, T]:
        for source in self._open():
            with unless_done(source):
                yield from source.__await__()
        return (yield from super().__await__())

    def _open(self) -> Iterator[ReplyFuture[Any]]:
        """Its sources one after the other, until one has failed."""
        return takewhile(lambda _: not self.done, self._sources)


def _derived(sources: Sequence[Future[Any]], make: Callable[[list[Any]], M]) -> ReplyFuture[M]:
    """A future of what `make` makes of the values of others."""
    ours = [one for one in sources if isinstance(one, ReplyFuture) and not one.hooked]
    derived: ReplyFuture[M] = _Derived(ours)

    def settle(whole: ReplyFuture[None]) -> None:
        try:
            whole.get()
            derived.resolve(make([one.get() for one in ours]))
        except BaseException as error:
            derived.reject(error)

    if len(ours) == len(sources):
        all_of(ours).on_done(settle)
    else:
        # One of a stranger does not tell when it is done.
        derived.set_get_hook(lambda timeout: make([one.get(timeout=timeout) for one in sources]))
    return derived
