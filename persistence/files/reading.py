"""Reading what somebody else may have put there: regular files only, no link, no pipe.

Stateless: any thread.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

__all__ = ["NotAFile", "is_empty", "is_linked", "open_file", "read_file"]

# Without O_NONBLOCK the opening of a named pipe would wait for a writer.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class NotAFile(ValueError):
    """A symbolic link, directory, pipe or device stands where a file is due."""


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises NotAFile, OSError."""
    try:
        fd = os.open(path, _FLAGS)
    except OSError as error:
        # ELOOP for a link (EMLINK on some systems), ENXIO for a socket.
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):
            raise NotAFile(f"{path.name} is no regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotAFile(f"{path.name} is no regular file")
    return os.fdopen(fd, "rb")


def read_file(path: Path, limit: int = -1, *, start: int = 0) -> bytes:
    """All bytes of the regular file at `path` from `start` on, or `limit` of them. Raises NotAFile,
    OSError."""
    with open_file(path) as file:
        file.seek(start)
        return file.read(limit)


def is_linked(folder: Path) -> bool:
    """Whether an agent's folder, or the one above it, is a symbolic link."""
    return folder.is_symlink() or folder.parent.is_symlink()


def is_empty(folder: Path) -> bool:
    """Whether a directory has no entry; does not read all of a large one."""
    with os.scandir(folder) as entries:
        return next(entries, None) is None
