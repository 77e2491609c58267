"""A disk that forgets what was not synced, or not flushed, for tests of what a power loss leaves.

One thread at a time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from kvactors.persistence.files.atomic import Buffer, Files

__all__ = ["PowerLossFiles"]


@dataclass(slots=True)
class _Content:
    """Of a file whose new bytes are not on the medium: the old ones."""

    durable: bytes
    handed: bool = False  # whether the drive has the new ones in its cache


@dataclass(slots=True)
class _Change:
    """A change of a directory that is not on the medium."""

    folder: Path
    names: frozenset[Path]  # what it makes, renames or removes
    undo: Callable[[], None]
    removed: Path | None = None  # the directory that it removed
    handed: bool = False  # whether the drive has it in its cache


class PowerLossFiles(Files):
    """Performs everything and remembers, for each file and directory, its synced state.

    A drive with a cache, as on macOS: `fsync` fills it, a `flush` puts all of it on the medium, a
    `sync` is both. The real medium is not waited for.

    `lose_power()` puts back what a power loss would leave: without a Random, all that was
    not flushed is lost; with one, any part of it is, as on a disk that writes in its own
    order: each file keeps its new bytes, loses them, or keeps a prefix and then zeros, and
    each directory keeps any of its changes, whichever came first; only those of one name
    build on each other. Not thread-safe.
    """

    def __init__(self) -> None:
        self._old: dict[Path, _Content] = {}
        self._changes: list[_Change] = []

    def mkdir(self, path: Path) -> None:
        super().mkdir(path)
        self._changed(path, lambda: shutil.rmtree(path, ignore_errors=True))

    def write_temp(self, path: Path, chunks: Sequence[Buffer]) -> None:
        if path.exists():
            self._touched(path)
        else:
            self._old[path] = _Content(b"")
            self._changed(path, lambda: self._remove(path))
        super().write_temp(path, chunks)

    def append(self, path: Path, data: bytes) -> None:
        self._touched(path)
        super().append(path, data)

    def truncate(self, path: Path, length: int) -> None:
        self._touched(path)
        super().truncate(path, length)

    def fsync(self, path: Path) -> None:
        path.lstat()
        if path in self._old:
            self._old[path].handed = True
        for change in self._changes:
            change.handed |= change.folder == path

    def full_sync(self, path: Path) -> None:
        self.fsync(path)
        self._old = {name: old for name, old in self._old.items() if not old.handed}
        self._settle([change for change in self._changes if change.handed])

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        if source in self._old:
            self._old[target] = self._old[source]
        self._changed(target, lambda: self._remove(target))

    def rename(self, source: Path, target: Path) -> None:
        replaced = self._save(target)
        super().rename(source, target)
        self._move(source, target)

        def undo() -> None:
            target.rename(source)
            self._move(target, source)
            replaced()

        self._changed(target, undo, also=source)

    def unlink(self, path: Path) -> None:
        removed = self._save(path)
        super().unlink(path)
        self._old.pop(path, None)
        self._changed(path, removed)

    def rmdir(self, path: Path) -> None:
        super().rmdir(path)
        self._changed(path, lambda: path.mkdir(mode=0o700), removed=path)

    def lose_power(self, random: Random | None = None) -> None:
        """Take away what was not flushed; then this object starts afresh."""
        self._settle(self._survivors(random))
        for change in reversed(self._changes):
            change.undo()
        for path, old in self._old.items():
            if path.exists():
                path.write_bytes(_mix(path.read_bytes(), old.durable, random))
        self._old.clear()
        self._changes.clear()

    def _survivors(self, random: Random | None) -> list[_Change]:
        """The changes that the disk wrote by itself. One whose name an earlier change has that is
        lost is lost too."""
        if random is None:
            return []
        share, kept = random.choice((0.3, 0.6, 0.9)), list[_Change]()
        lost: set[Path] = set()
        for change in self._changes:
            if lost.isdisjoint(change.names) and random.random() < share:
                kept.append(change)
            else:
                lost |= change.names
        return kept

    def _settle(self, durable: list[_Change]) -> None:
        """These changes stay; what was done before in a directory that is gone is moot."""
        for done in durable:
            if done not in self._changes:
                continue
            index = self._changes.index(done)
            before, after = self._changes[:index], self._changes[index + 1 :]
            if done.removed is not None:
                before = [item for item in before if not item.folder.is_relative_to(done.removed)]
            self._changes = before + after

    def _changed(
        self,
        path: Path,
        undo: Callable[[], None],
        *,
        also: Path | None = None,
        removed: Path | None = None,
    ) -> None:
        names = frozenset({path} if also is None else {path, also})
        self._changes.append(_Change(path.parent, names, undo, removed))

    def _touched(self, path: Path) -> None:
        if path not in self._old:
            self._old[path] = _Content(path.read_bytes())
        self._old[path].handed = False

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._old.pop(path, None)

    def _move(self, source: Path, target: Path) -> None:
        self._old.pop(target, None)
        if source in self._old:
            self._old[target] = self._old.pop(source)

    def _save(self, path: Path) -> Callable[[], None]:
        """What brings the file at `path` back as it is, synced or not."""
        if not path.exists():
            return lambda: None
        data, old = path.read_bytes(), self._old.get(path)

        def restore() -> None:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.write_bytes(data)
            if old is not None:
                self._old[path] = old

        return restore


def _mix(written: bytes, durable: bytes, random: Random | None) -> bytes:
    choice = random.randrange(3) if random is not None else 0
    if random is None or choice == 0:
        return durable
    if choice == 1 or not written.startswith(durable):
        return written
    end = random.randint(len(durable), len(written))
    return written[:end] + bytes(random.choice((0, len(written) - end)))
