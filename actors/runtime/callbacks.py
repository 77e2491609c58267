"""Callbacks of futures, which whoever settles one calls, however many settle each other; and what
waits for them."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

__all__ = ["call_back", "on_loop", "unless_done"]

F = TypeVar("F")

logger = logging.getLogger("kvactors")


class _Calls(threading.local):
    """Callbacks that this thread is in the middle of, one within the other, and those that wait
    until it is out of them."""

    def __init__(self) -> None:
        self.depth = 0
        self.draining = False
        self.later = deque[Callable[[], None]]()


_calls = _Calls()
# Futures that settle each other, one within the other: each takes some frames of Python's stack.
MOST_NESTED = 50


def call_back(callback: Callable[[F], object], future: F) -> None:
    """Who settles a future is not to fail by what others do with it, nor by how many others
    settle one after the other."""
    if _calls.depth == MOST_NESTED:
        _calls.later.append(partial(call_back, callback, future))
        return
    _calls.depth += 1
    try:
        callback(future)
    except BaseException:
        logger.exception("a callback of a future raised")
    finally:
        _calls.depth -= 1
    if _calls.later and not _calls.depth and not _calls.draining:
        _calls.draining = True
        while _calls.later:
            _calls.later.popleft()()
        _calls.draining = False


def on_loop(loop: "asyncio.AbstractEventLoop", source: Any) -> "asyncio.Future[None]":
    """A future of the asyncio `loop` that is done when the future `source` is; who waits for it no
    longer leaves nothing there."""
    done: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not done.done():
            done.set_result(None)

    def call_soon(_: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell)

    def let_go(_: object) -> None:
        if done.cancelled():
            source.forget(call_soon)

    done.add_done_callback(let_go)
    source.on_done(call_soon)
    return done


@contextmanager
def unless_done(source: Any) -> Iterator[None]:
    """What the future `source` fails with is told by what is made of it."""
    try:
        yield
    except Exception:
        if not source.done:
            raise
