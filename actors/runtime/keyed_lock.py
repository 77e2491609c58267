"""Keys that one thread has at a time. Any thread."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kvactors.actors.runtime.blocking import check_may_block

__all__ = ["KeyedLock"]


class KeyedLock:
    """A lock for each key, for who waits for actors while it is held: other keys are free
    meanwhile, and a thread that runs actors never waits for one. The thread that has a key may take
    it once more: it may be one that does all."""

    def __init__(self) -> None:
        self._freed = threading.Condition()
        # By key, the thread that has it.
        self._held: dict[str, int] = {}

    @contextmanager
    def of(self, key: str) -> Iterator[None]:
        """Within, nobody else has this `key`. Raises BlockingCall where it is held and this thread
        may not wait."""
        here = threading.get_ident()
        with self._freed:
            again = self._held.get(key) == here
            while not again and key in self._held:
                check_may_block()
                self._freed.wait()
            self._held[key] = here
        try:
            yield
        finally:
            if not again:
                with self._freed:
                    del self._held[key]
                    self._freed.notify_all()
