"""The end of a process whose threads still compute.

A daemon thread that comes back from C++ to an interpreter that has ended is taken away in the
middle of it, and C++ then aborts the whole process: "terminate called" (until Python 3.14, which
lets such a thread wait).
"""

import ctypes
import threading
import time

from kvactors.actors.runtime.dispatcher import Dispatcher

__all__ = ["interrupt"]

# Seconds that a thread that has nothing to do gets to say so, and then between two tries: what is
# raised may be caught, or be raised in what ends it.
FIRST, AGAIN = 1.0, 0.1


class _Out(threading.Event):
    """Set once the thread that it is scheduled on is out of what it did."""

    def run_batch(self) -> None:
        self.set()


def interrupt(dispatcher: Dispatcher, error: type[Exception], seconds: float) -> None:
    """Raise an `error` in what the one thread of a `dispatcher` runs, as soon as that is in Python,
    until it is out of it or so many `seconds` have passed."""
    out, end = _Out(), time.monotonic() + seconds
    dispatcher.schedule(out)
    (ident,) = dispatcher.idents
    raising = ctypes.c_ulong(ident), ctypes.py_object(error)
    over = out.wait(FIRST)
    while not over and time.monotonic() < end:
        if not ctypes.pythonapi.PyThreadState_SetAsyncExc(*raising):
            return  # There is no such thread any more.
        over = out.wait(AGAIN)
