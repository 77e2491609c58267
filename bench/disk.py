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
    "save_one",
    "seconds_of",
]

FINGERPRINT = "0" * 16
PIECE = 1 << 20


class UnsyncedFiles(Files):
    """For stores that are only read afterwards."""

    def sync(self, path: Path) -> None:
        pass

    def sync_dir(self, path: Path) -> None:
        pass


def commit_all(store: Store, saves: Sequence[Save]) -> None:
    outcomes = Outcomes()
    outcomes.commit(store, *saves)
    assert not outcomes.failed, outcomes.failed


def disk_run(path: Path, size: int) -> tuple[float, float]:
    """Seconds to write and sync a file, and to read it and copy what was read."""
    data = os.urandom(PIECE)
    begin = time.perf_counter()
    Files().write_temp(path, [data] * (size // PIECE) + [data[: size % PIECE]])
    Files().sync(path)
    written = time.perf_counter() - begin
    drop_from_cache(path)
    begin, copied = time.perf_counter(), bytearray()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(PIECE):
            copied += piece
    read = time.perf_counter() - begin
    path.unlink()
    return written, read


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
