"""Threads that compute in Python beside what is measured."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["busy_threads"]


@contextmanager
def busy_threads(count: int) -> Iterator[None]:
    """So many threads that hold the interpreter as long as they may, within the block."""
    done = threading.Event()
    threads = [threading.Thread(target=_spin, args=(done,)) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def _spin(done: threading.Event) -> None:
    value = 0
    while not done.is_set():
        for number in range(1000):
            value = (value * 31 + number) % 1_000_003
