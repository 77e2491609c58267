"""Test doubles for the disk, for this project's tests and for yours.

    CountingFiles     counts operations and remembers them
    FailingFiles      raises OSError at the n-th operation, or at some name and path
    HoldingFiles      holds an operation back until told; says when it was reached
    KillAt            SIGKILLs its own process at the n-th operation
    LyingFiles        drops or flips bytes on the way to the disk
    PowerLossFiles    remembers what was not synced, and takes it away

Each but the last wraps another `Files`, so they nest. The events of HoldingFiles are for
two threads, everything else belongs to the persistence thread. `Outcomes` collects what
a commit reports, and `example_segment` makes a small segment.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from random import Random

from kvactors.core.cache.segment import Segment
from kvactors.persistence.commit.save import Save
from kvactors.persistence.files.atomic import Buffer, Files
from kvactors.persistence.store.store import Store
from kvactors.persistence.testing.power_loss import PowerLossFiles

__all__ = [
    "CountingFiles",
    "FailingFiles",
    "HoldingFiles",
    "KillAt",
    "LyingFiles",
    "Operation",
    "Outcomes",
    "PowerLossFiles",
    "WrappedFiles",
    "example_segment",
]


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a Files method. `index` counts from 0."""

    index: int
    name: str
    path: Path
    data: bytes = b""

    def matches(self, name: str, pattern: str) -> bool:
        """Shell patterns over the method's name and the file's whole path."""
        return fnmatch(self.name, name) and fnmatch(str(self.path), pattern)


class WrappedFiles(Files):
    """Passes every operation through `around`, which subclasses override."""

    def __init__(self, inner: Files | None = None) -> None:
        self.inner = inner if inner is not None else Files()
        self._index = 0

    @property
    def met(self) -> int:
        """Operations so far."""
        return self._index

    def around(self, operation: Operation, act: Callable[[], None]) -> None:
        """Called in place of each operation; `act` performs it."""
        act()

    def _pass(self, name: str, path: Path, act: Callable[[], None], data: bytes = b"") -> None:
        operation = Operation(self._index, name, path, data)
        self._index += 1
        self.around(operation, act)

    def write_part(self, operation: Operation, data: bytes) -> None:
        """Perform a write or append with other data."""
        if operation.name == "append":
            self.inner.append(operation.path, data)
        else:
            self.inner.write_temp(operation.path, [data])

    def mkdir(self, path: Path) -> None:
        self._pass("mkdir", path, lambda: self.inner.mkdir(path))

    def write_temp(self, path: Path, chunks: Sequence[Buffer]) -> None:
        act = lambda: self.inner.write_temp(path, chunks)  # noqa: E731
        self._pass("write_temp", path, act, b"".join(chunks))

    def append(self, path: Path, data: bytes) -> None:
        self._pass("append", path, lambda: self.inner.append(path, data), data)

    def truncate(self, path: Path, length: int) -> None:
        self._pass("truncate", path, lambda: self.inner.truncate(path, length))

    def sync(self, path: Path) -> None:
        self._pass("sync", path, lambda: self.inner.sync(path))

    def sync_dir(self, path: Path) -> None:
        self._pass("sync_dir", path, lambda: self.inner.sync_dir(path))

    def fsync(self, path: Path) -> None:
        self._pass("fsync", path, lambda: self.inner.fsync(path))

    def flush(self, path: Path) -> None:
        self._pass("flush", path, lambda: self.inner.flush(path))

    def link(self, source: Path, target: Path) -> None:
        self._pass("link", target, lambda: self.inner.link(source, target))

    def rename(self, source: Path, target: Path) -> None:
        self._pass("rename", target, lambda: self.inner.rename(source, target))

    def unlink(self, path: Path) -> None:
        self._pass("unlink", path, lambda: self.inner.unlink(path))

    def rmdir(self, path: Path) -> None:
        self._pass("rmdir", path, lambda: self.inner.rmdir(path))


class CountingFiles(WrappedFiles):
    """Performs everything; `operations` lists it, `counts` counts it by name."""

    def __init__(self, inner: Files | None = None) -> None:
        super().__init__(inner)
        self.operations: list[Operation] = []

    @property
    def counts(self) -> Counter[str]:
        """Operations so far by name."""
        return Counter(operation.name for operation in self.operations)

    def around(self, operation: Operation, act: Callable[[], None]) -> None:
        self.operations.append(operation)
        act()


class FailingFiles(WrappedFiles):
    """Passes on to `inner`, and raises OSError(code) where told: at operation `at` (and later ones,
    if `sticky`), and at those that match `name` and `path`. A write that fails leaves half its
    bytes. Nothing fails while `armed` is False.
    """

    def __init__(
        self,
        inner: Files | None = None,
        *,
        at: int | None = None,
        sticky: bool = False,
        name: str = "",
        path: str = "*",
        code: int = errno.ENOSPC,
    ) -> None:
        super().__init__(inner)
        self.armed = True
        self.failed: list[Operation] = []
        self._at, self._sticky, self._code = at, sticky, code
        self._name, self._path = name, path

    def arm(self) -> None:
        """Fail where told, counting operations from here."""
        self._index, self.armed = 0, True

    def around(self, operation: Operation, act: Callable[[], None]) -> None:
        if not self.armed or not self._is_due(operation):
            act()
            return
        self.failed.append(operation)
        if operation.data:
            self.write_part(operation, operation.data[: len(operation.data) // 2])
        raise OSError(self._code, os.strerror(self._code), str(operation.path))

    def _is_due(self, operation: Operation) -> bool:
        if self._at is not None:
            late = self._sticky and operation.index > self._at
            return operation.index == self._at or late
        return operation.matches(self._name, self._path)


class HoldingFiles(WrappedFiles):
    """Holds operations of `inner` that match `name` and `path` until `release` is set; `reached`
    tells of the first."""

    def __init__(self, inner: Files | None = None, *, name: str = "*", path: str = "*") -> None:
        super().__init__(inner)
        self.reached = threading.Event()
        self.release = threading.Event()
        self._name, self._path = name, path

    def around(self, operation: Operation, act: Callable[[], None]) -> None:
        if operation.matches(self._name, self._path):
            self.reached.set()
            self.release.wait()
        act()


class KillAt(WrappedFiles):
    """Ends the process with SIGKILL before operation `at`; a write is done by half first."""

    def __init__(self, at: int, inner: Files | None = None) -> None:
        super().__init__(inner)
        self._at = at

    def around(self, operation: Operation, act: Callable[[], None]) -> None:
        if operation.index == self._at:
            if operation.data:
                self.write_part(operation, operation.data[: len(operation.data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        act()


class LyingFiles(WrappedFiles):
    """Writes of `inner` that match `path` lose their second half (`how="drop"`) or one bit
    (`how="flip"`), and report success."""

    def __init__(self, inner: Files | None = None, *, path: str = "*", how: str = "flip") -> None:
        super().__init__(inner)
        if how not in ("drop", "flip"):
            raise ValueError(f"how={how!r} is neither 'drop' nor 'flip'")
        self.armed = True
        self._path, self._how = path, how

    def around(self, operation: Operation, act: Callable[[], None]) -> None:
        if not self.armed or not operation.data or not operation.matches("*", self._path):
            act()
            return
        data = bytearray(operation.data)
        if self._how == "drop":
            del data[len(data) // 2 :]
        else:
            data[len(data) // 2] ^= 1
        self.write_part(operation, bytes(data))


@dataclass(slots=True)
class Outcomes:
    """What commits reported, in order."""

    durable: list[Save] = field(default_factory=list)
    cached: list[Save] = field(default_factory=list)
    failed: list[tuple[Save, str, BaseException]] = field(default_factory=list)

    def commit(self, store: Store, *saves: Save) -> None:
        """Commit and collect."""
        store.commit(
            saves,
            durable=self.durable.append,
            cached=self.cached.append,
            failed=lambda save, part, error: self.failed.append((save, part, error)),
        )


def example_segment(start: int, end: int, *, seed: int = 0, token_bytes: int = 8) -> Segment:
    """KV of tokens [start, end) for two layers, one packed and one in bfloat16, random
    by `seed`.

    `token_bytes`: about how many bytes a token takes; a multiple of 8.
    """
    random = Random(f"{seed} {start} {end}")
    words, tokens = token_bytes // 8, end - start
    return Segment(
        start,
        end,
        tokens_hash=f"{seed:x}-{end}",
        layout='[{"kind": "full"}]',
        tensors=(
            ("layers.0.scales", "BF16", (tokens, 2 * words), random.randbytes(4 * words * tokens)),
            ("layers.0.keys", "U32", (tokens, words), random.randbytes(4 * words * tokens)),
        ),
    )
