"""Callbacks of futures: each is called by whoever settles one, however many settle each other."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

__all__ = ["call_back"]

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
