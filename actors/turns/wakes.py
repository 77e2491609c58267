"""Wakes: what other threads tell the coroutines of an event loop, with one wake for all of it."""

import asyncio
import weakref
from collections import deque
from contextlib import suppress

__all__ = ["Wakes", "wakes_of"]


class Wakes:
    """Sets events of a `loop`, from any thread.

    A step of sixteen streams tells sixteen events. Each wake is a write to a socket, which lets go
    of the GIL, and gets it back when another thread is interrupted: one wakes the loop for all that
    are told before it looks.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # Weak: the loops of all that were made would stay.
        self._loop = weakref.ref(loop)
        self._told = deque[asyncio.Event]()
        self._woken = False

    def set(self, event: asyncio.Event) -> None:
        """Set an event soon. Once the loop is closed nobody waits for any."""
        self._told.append(event)
        # Who reads that it is woken was in the queue before the loop looked there.
        if not self._woken and (loop := self._loop()) is not None:
            self._woken = True
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._woken = False
        while self._told:
            self._told.popleft().set()


_OF = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Wakes]()


def wakes_of(loop: asyncio.AbstractEventLoop) -> Wakes:
    """Those of a `loop`, on its thread."""
    wakes = _OF.get(loop)
    if wakes is None:
        wakes = _OF[loop] = Wakes(loop)
    return wakes
