"""A journal that is a file: frames as agents' ledgers have them, each synced before the next."""

import asyncio
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.persistence.errors import LedgerUnreadable, StoreLocked
from kvactors.persistence.files.atomic import Files, replace_file
from kvactors.persistence.files.lock import StoreLock
from kvactors.persistence.ledger.frames import encode_header, encode_records, scan
from kvactors.persistence.ledger.records import decode_records

__all__ = ["FileJournal", "held_alone"]

DIES = 10.0
"""Seconds that a process has for its end."""
NO_AGENT = " (no agent's memory is in it)"
"""What is said of a damaged one."""


class FileJournal:
    """The journal of `name` at `path`, made with the first record. What a crash tore off its end is
    cut; other damage raises LedgerUnreadable. `files` writes. One loop; the disk has a thread."""

    def __init__(self, path: Path, name: str, files: Files | None = None) -> None:
        self._path = path
        self._name = name
        self._files = files or Files()
        # One thread: writes stay in order, and one whose waiter was cancelled still ends first.
        self._disk = ThreadPoolExecutor(1, f"journal-{name}")
        self._length = 0
        self._frames = 0
        # Whether those are the file's.
        self._known = True

    def load(self) -> list[Record]:
        """All records, in order. Raises OSError, LedgerUnreadable."""
        if not self._path.exists():
            return []
        try:
            found = scan(self._path.read_bytes(), self._path)
            records = decode_records(found, self._path)
        except LedgerUnreadable as error:
            raise LedgerUnreadable(self._path, error.reason, NO_AGENT) from error
        self._length, self._frames = found.length, len(found.frames)
        if found.torn is not None:
            self._files.truncate(self._path, self._length)
            self._files.sync(self._path)
        return list(records)

    async def append(self, record: Record) -> None:
        """Write one; synced on return. Raises OSError: then nothing of it stays, if the disk takes
        that at least."""
        await asyncio.get_running_loop().run_in_executor(self._disk, self._append, record)

    async def replace(self, records: Iterable[Record]) -> None:
        """These instead of all that is there; synced on return. Raises OSError."""
        await asyncio.get_running_loop().run_in_executor(self._disk, self._replace, records)

    def _append(self, record: Record) -> None:
        if not self._known:
            # A replacement failed at its end: the old records stand, or the new ones.
            self._files.sync_dir(self._path.parent)
            self.load()
            self._known = True
        if not self._frames:
            self._replace([record])
            # Whoever made the folder may not have synced its name.
            self._files.sync_dir(self._path.parent.parent)
            return
        # A failed append may have left a part of it: what is written next would stand behind that.
        self._files.truncate(self._path, self._length)
        frame = encode_records([dict(record)], self._frames, self._name, None)
        self._files.append(self._path, frame)
        self._files.sync(self._path)
        self._length += len(frame)
        self._frames += 1

    def _replace(self, records: Iterable[Record]) -> None:
        frames = [encode_header(self._name, None)]
        frames += [
            encode_records([dict(record)], number, self._name, None)
            for number, record in enumerate(records, start=1)
        ]
        self._known = False
        replace_file(self._files, self._path, b"".join(frames))
        self._length, self._frames, self._known = sum(map(len, frames)), len(frames), True


async def held_alone(folder: Path, patience: float = DIES) -> StoreLock:
    """A lock on the journals in `folder`, while it lives. A process that ends is waited for, for
    `patience` seconds. Raises StoreLocked, StoreNotWritable."""
    until = time.monotonic() + patience
    while True:
        try:
            return StoreLock(folder, Files())
        except StoreLocked:
            if time.monotonic() >= until:
                raise
        await asyncio.sleep(0.1)
