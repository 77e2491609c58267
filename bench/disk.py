"""What benchmarks of the store share: the disk's own rate, its cache, and many agents."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kvactors.persistence import Files, Save, Store
from kvactors.persistence.testing.doubles import Outcomes, example_segment

__all__ = [
    "UnsyncedFiles",
    "commit_all",
    "disk_run",
    "drop_from_cache",
    "fill",
    "raw_read",
    "raw_write",
    "save_one",
    "seconds_of",
]

FINGERPRINT = "0" * 16
PIECE = 1 << 20


class UnsyncedFiles(Files):
    """For stores that are only read afterwards."""

    def full_sync(self, path: Path) -> None:
        pass

    def fsync(self, path: Path) -> None:
        pass


def commit_all(store: Store, saves: Sequence[Save]) -> None:
    outcomes = Outcomes()
    outcomes.commit(store, *saves)
    assert not outcomes.failed, outcomes.failed


def disk_run(path: Path, size: int) -> tuple[float, float]:
    """Seconds to write and sync a file, and to read it."""
    written, read = raw_write(path, size), raw_read(path)
    path.unlink()
    return written, read


def raw_write(path: Path, size: int) -> float:
    """Seconds to write and sync a file of so many bytes."""
    data = os.urandom(PIECE)
    pieces = [data] * (size // PIECE) + [data[: size % PIECE]]
    begin = time.perf_counter()
    Files().write_temp(path, pieces)
    Files().sync(path)
    return time.perf_counter() - begin


def raw_read(path: Path) -> float:
    """Seconds to read a file into memory that is there, out of the page cache where the system can
    drop it."""
    drop_from_cache(path)
    memory = memoryview(bytearray(path.stat().st_size))
    begin = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        done = 0
        while done < len(memory):
            done += file.readinto(memory[done:])
    return time.perf_counter() - begin


def seconds_of(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def drop_from_cache(path: Path) -> None:
    """Drop a file from the page cache, on systems that let a program do that."""
    if hasattr(os, "posix_fadvise"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fill(path: Path, agents: int) -> None:
    """A new store with so many agents, a few tokens each."""
    store = Store(path, files=UnsyncedFiles())
    for first in range(0, agents, 100):
        commit_all(store, [_first_turn(n) for n in range(first, min(first + 100, agents))])
    store.close()


def save_one(store: Store, number: int) -> float:
    """Seconds to save the first turn of one more agent."""
    return seconds_of(lambda: commit_all(store, [_first_turn(number)]))


def _first_turn(number: int) -> Save:
    segment = example_segment(0, 4, seed=number)
    return Save(f"agent {number}", ({"turn": 1},), FINGERPRINT, (segment,))
