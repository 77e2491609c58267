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

# Seconds between two tries: what is raised may be caught, or be raised in what ends it.
AGAIN = 0.1


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
    while not out.wait(AGAIN) and time.monotonic() < end:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(*raising)
