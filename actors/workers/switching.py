"""How often Python's threads take turns, while the MLX thread has work. Any thread.

A thread that computes keeps the GIL for 5 ms, so a step that asks for it a few times waits longer
than it computes: one of 7 ms took 16 beside one such thread, and 10 with half a millisecond. The
interval is the interpreter's, and so the whole program's: it is shorter as long as a step takes,
and the program's own behind it.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["SWITCH_INTERVAL", "switching"]

SWITCH_INTERVAL = 0.0005

_lock = threading.Lock()
_asked: list[float] = []
_usual = 0.0
_ours = 0.0


@contextmanager
def switching(seconds: float | None) -> Iterator[None]:
    """Within, threads take turns at least this often; None leaves it as it is. What the program
    sets itself meanwhile stays."""
    if seconds is None:
        yield
        return
    global _usual
    with _lock:
        if not _asked:
            _usual = sys.getswitchinterval()
        _asked.append(seconds)
        _set()
    try:
        yield
    finally:
        with _lock:
            _asked.remove(seconds)
            if sys.getswitchinterval() == _ours:
                _set()


def _set() -> None:
    global _ours
    sys.setswitchinterval(min([_usual, *_asked]))
    _ours = sys.getswitchinterval()
