"""What KV costs on disk, and who loses it first when `max_disk` is reached.

A file that several agents share (hard links) is counted once: evicting one of them
frees only what nobody else holds.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from kvactors.persistence.errors import MaxDiskExceeded

__all__ = ["DiskUsage", "Key", "Usage", "measure_folder"]


class Key(NamedTuple):
    """One agent's KV under one model."""

    agent: str  # encoded id
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What a folder costs. Sizes of files in bytes; epoch seconds."""

    own: int
    """Files that have one name."""
    links: tuple[tuple[int, int], ...]
    """Inode and size of each file that has another name too."""
    last_used: float

    @property
    def size(self) -> int:
        """Bytes of all files in the folder."""
        return self.own + sum(size for _, size in self.links)


def measure_folder(folder: Path) -> Usage | None:
    """Sizes and newest time of a folder's files; None if it is gone. Raises OSError."""
    own, newest = 0, 0.0
    links: list[tuple[int, int]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                newest = max(newest, status.st_mtime)
                if status.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                    links.append((status.st_ino, status.st_size))
                else:
                    own += status.st_size
    except FileNotFoundError:
        return None
    return Usage(own, tuple(links), newest)


class DiskUsage:
    """Usage of every key. `size` is what all of them take together, in bytes."""

    def __init__(self) -> None:
        self._usage: dict[Key, Usage] = {}
        self._holders: Counter[int] = Counter()  # names that each linked inode has here
        self.size = 0

    def get(self, key: Key) -> Usage | None:
        """What a key costs; None if it has nothing."""
        return self._usage.get(key)

    def shared(self, key: Key) -> int:
        """Bytes of the key's files that other keys hold too."""
        usage = self._usage.get(key)
        links = usage.links if usage else ()
        return sum(size for inode, size in links if self._holders[inode] > 1)

    def note(self, key: Key, usage: Usage | None) -> None:
        """Replace what is known of a key; None: it is gone."""
        before = self._usage.pop(key, None)
        if before is not None:
            self.size -= before.own
            for inode, size in before.links:
                self._holders[inode] -= 1
                self.size -= 0 if self._holders[inode] else size
        if usage is not None:
            self._usage[key] = usage
            self.size += usage.own
            for inode, size in usage.links:
                self.size += 0 if self._holders[inode] else size
                self._holders[inode] += 1

    def touch(self, key: Key) -> None:
        """Make a key the most recently used."""
        usage = self._usage.get(key)
        if usage is not None:
            self._usage[key] = replace(usage, last_used=time.time())

    def reserve(self, key: Key, change: int) -> None:
        """Count `change` more bytes for a key that is about to be written."""
        before = self._usage.get(key) or Usage(0, (), 0.0)
        self.note(key, replace(before, own=before.own + change, last_used=time.time()))

    def victims(
        self, needed: int, limit: int, keep: Set[Key], last: Callable[[], Set[str]]
    ) -> list[Key]:
        """Whom to evict so that `needed` more bytes stay within `limit`, in order.

        Least recently used first; agents (encoded) in `last()` after all others; keys in
        `keep` never. Raises MaxDiskExceeded if that cannot be enough.
        """
        excess = self.size + needed - limit
        if excess <= 0:
            return []
        held = self._holders.copy()
        chosen: list[Key] = []
        for key in self._in_order(keep, last()):
            excess -= self._usage[key].own + _freed(self._usage[key].links, held)
            chosen.append(key)
            if excess <= 0:
                return chosen
        raise MaxDiskExceeded(needed, excess + limit - needed, limit)

    def _in_order(self, keep: Set[Key], last: Set[str]) -> list[Key]:
        free = (key for key in self._usage if key not in keep)
        return sorted(free, key=lambda key: (key.agent in last, self._usage[key].last_used))


def _freed(links: Iterable[tuple[int, int]], held: Counter[int]) -> int:
    """Bytes that go with the last name of each file; counts the names down."""
    freed = 0
    for inode, size in links:
        held[inode] -= 1
        freed += 0 if held[inode] else size
    return freed
