"""One process, and one object in it, for each store. One thread at a time."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from weakref import WeakValueDictionary

from filelock import FileLock, Timeout

from kvactors.persistence.errors import StoreAlreadyOpen, StoreLocked, StoreNotWritable
from kvactors.persistence.files.atomic import Files

__all__ = ["LOCK_NAME", "PATIENCE", "StoreLock"]

LOCK_NAME = "store.lock"
# Seconds: who only looks whether somebody has it has it for a moment.
PATIENCE = 0.1

# By device and inode: two spellings of a path are one store.
_open_here: WeakValueDictionary[tuple[int, int], StoreLock] = WeakValueDictionary()


class StoreLock:
    """Holds `<root>/store.lock` (flock) while it lives; the file names the pid.

    The operating system releases the lock with the process, however that ends, and
    filelock closes the descriptor in a forked child: no lock is ever stale.
    """

    def __init__(self, root: Path, files: Files) -> None:
        """Raises StoreAlreadyOpen, StoreLocked, StoreNotWritable."""
        self._key = _identity(root)
        self._pid = os.getpid()
        other = _open_here.get(self._key)
        if other is not None and other.is_ours:
            raise StoreAlreadyOpen(root)
        self._path = path = root / LOCK_NAME
        # Opened on one thread and closed on another: the lock belongs to the process.
        self._lock = FileLock(path, mode=0o600, thread_local=False)
        try:
            self._lock.acquire(timeout=PATIENCE, poll_interval=PATIENCE / 20)
        except Timeout:
            raise StoreLocked(root, _read_pid(path)) from None
        except OSError as error:
            raise StoreNotWritable(root, str(error)) from error
        # The pid is for messages only: a full disk must not keep the store from opening.
        with suppress(OSError):
            files.write_temp(path, [str(self._pid).encode()])
        self._file = _identity(path)
        _open_here[self._key] = self

    @property
    def is_ours(self) -> bool:
        """False once released, and in a process forked from the holder."""
        return self._pid == os.getpid() and self._lock.is_locked

    def check(self) -> None:
        """Raise StoreNotWritable where the file was deleted: another process may have the store
        since, and to go on would cut what that has written."""
        with suppress(FileNotFoundError):
            if _identity(self._path) == self._file:
                return
        raise StoreNotWritable(
            self._path.parent,
            f"its {LOCK_NAME} was deleted while it was open, so that another process may have it: "
            "end this one and open it again",
        )

    def release(self) -> None:
        """Idempotent; does nothing in a forked child."""
        if self.is_ours:
            _open_here.pop(self._key, None)
            self._lock.release()


def _identity(path: Path) -> tuple[int, int]:
    """Device and inode."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _read_pid(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None
