"""Keys that one thread has at a time. Any thread."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kvactors.actors.runtime.blocking import check_may_block

__all__ = ["KeyedLock"]


class KeyedLock:
    """A lock for each key, for who waits for actors while it is held: other keys are free
    meanwhile, and a thread that runs actors never waits for one."""

    def __init__(self) -> None:
        self._freed = threading.Condition()
        self._held: set[str] = set()

    @contextmanager
    def of(self, key: str) -> Iterator[None]:
        """Within, nobody else has this `key`. Raises BlockingCall where it is held and this thread
        may not wait."""
        with self._freed:
            while key in self._held:
                check_may_block()
                self._freed.wait()
            self._held.add(key)
        try:
            yield
        finally:
            with self._freed:
                self._held.remove(key)
                self._freed.notify_all()
