"""The only place that changes anything on disk. Stateless: any thread.

What is written gets its name last: a temporary file, a sync, a rename [schema, Atomic Write
Protocol].

`Files` is a handful of small operations on paths. The store builds its commits from
them, and the doubles in `doubles.py` wrap them to fail, hold back, lie or kill.
Operations take paths, not descriptors: a group commit of many agents would otherwise
hold more descriptors open than macOS grants a process (256).
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from kvactors.persistence.errors import ExportRejected
from kvactors.persistence.files.naming import TEMP_SUFFIX

__all__ = ["NO_LINKS", "Buffer", "Files", "replace_file", "temp_path"]

Buffer = bytes | memoryview
"""Bytes to write: somebody's own, or a view of memory that does not change."""

NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV, errno.ENOSYS}
"""What a file system without hard links answers."""

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW

_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_NO_DIR_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF}
_NO_FULL_SYNC = {*_NO_DIR_SYNC, errno.ENOTTY, errno.ENODEV}
# macOS refuses a single write of 2 GiB or more.
_WRITE_PIECE = 64 << 20


class Files:
    """Writes on the real file system. Stateless; every method may raise OSError.

    Files are made with mode 0600 and directories with 0700.
    """

    def mkdir(self, path: Path) -> None:
        """Make one directory; FileExistsError if it is there."""
        os.mkdir(path, 0o700)

    def write_temp(self, path: Path, chunks: Sequence[Buffer]) -> None:
        """Write a whole file, unsynced. One that is there is a leftover and is emptied first."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FLAGS, 0o600)
        try:
            for chunk in chunks:
                _write_all(fd, chunk)
        finally:
            os.close(fd)

    def append(self, path: Path, data: bytes) -> None:
        """Append to a file that exists, unsynced. A failure may leave a part of it."""
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | _FLAGS)
        try:
            _write_all(fd, data)
        finally:
            os.close(fd)

    def truncate(self, path: Path, length: int) -> None:
        """Cut a file to `length` bytes, unsynced."""
        os.truncate(path, length)

    def sync(self, path: Path) -> None:
        """Put a file's bytes on the medium (F_FULLFSYNC where there is one)."""
        self._sync(path)

    def sync_dir(self, path: Path) -> None:
        """Put a directory's entries on the medium, where its file system can."""
        self._sync(path)

    def fsync(self, path: Path) -> None:
        """Hand a file's bytes to the drive, or a directory's entries where its file system can.

        On macOS the drive may hold them in its cache until a `flush`; elsewhere they are on the
        medium then.
        """
        try:
            with _opened(path) as descriptor:
                os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NO_DIR_SYNC or not path.is_dir():
                raise

    def flush(self, path: Path) -> None:
        """Put all that the drive of `path` was handed on the medium; nothing where the system or
        the file system has no such call."""
        self._flushed(path)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; FileExistsError if `target` is there.

        Fails with one of NO_LINKS where the file system has no hard links.
        """
        os.link(source, target, follow_symlinks=False)

    def touch(self, path: Path) -> None:
        """Set a file's time to now, unsynced."""
        os.utime(path)

    def rename(self, source: Path, target: Path) -> None:
        """Atomically give `source` the name `target`, replacing what had it."""
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file, or an empty directory in its place; FileNotFoundError if neither."""
        if path.is_dir() and not path.is_symlink():
            os.rmdir(path)
        else:
            os.unlink(path)

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def full_sync(self, path: Path) -> None:
        """Put what is at `path`, and all that its drive has in its cache, on the medium; OSError
        where the system has no such call."""
        if _FULL_SYNC is None:
            raise OSError(errno.ENOTSUP, "no F_FULLFSYNC here")
        with _opened(path) as descriptor:
            fcntl.fcntl(descriptor, _FULL_SYNC)

    def _sync(self, path: Path) -> None:
        if not self._flushed(path):
            self.fsync(path)

    def _flushed(self, path: Path) -> bool:
        try:
            self.full_sync(path)
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
            return False
        return True


def temp_path(path: Path) -> Path:
    """Where the bytes of `path` stand until they are synced; swept on open."""
    return path.with_name(path.name + TEMP_SUFFIX)


def replace_file(files: Files, path: Path, data: bytes) -> None:
    """Let the file at `path` be `data`, through `files`: a crash at any point leaves the old or the
    new one.

    Raises OSError; then the old one stands and no temporary file is left, unless
    removing it failed too.
    """
    temp = temp_path(path)
    try:
        files.write_temp(temp, [data])
        files.sync(temp)
        files.rename(temp, path)
    except OSError:
        with suppress(OSError):
            files.unlink(temp)
        raise
    files.sync_dir(path.parent)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file outside the store, open to be written: whole under its name, or not there.

    Raises ExportRejected if the name is taken, OSError.
    """
    if path.exists():
        raise ExportRejected(f"{path} exists: name another file, or delete it first")
    fd, name = tempfile.mkstemp(TEMP_SUFFIX, path.name + ".", path.parent)
    temp, files = Path(name), Files()
    try:
        with open(fd, "wb") as file:
            yield file
        files.sync(temp)
        files.rename(temp, path)
    except BaseException:
        with suppress(OSError):
            files.unlink(temp)
        raise
    files.sync_dir(path.parent)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    # Through a link, too, as of a folder that is on another disk: what stands there is synced.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write_all(fd: int, data: Buffer) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view[:_WRITE_PIECE]) :]
