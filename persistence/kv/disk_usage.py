"""What KV costs on disk, and who loses it first when `max_disk` is reached.
Persistence thread only.

A file that several agents share (hard links) is counted once: evicting one of them
frees only what nobody else holds.
"""

from __future__ import annotations

import os
import time
from collections import ChainMap, Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from kvactors.persistence.errors import MaxDiskExceeded
from kvactors.persistence.files.naming import SEGMENT_NAME

__all__ = ["DiskUsage", "Held", "Key", "Usage", "measure_folder"]


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
    tokens: int
    """Whose KV it holds, as the names of its segments tell."""

    @property
    def size(self) -> int:
        """Bytes of all files in the folder."""
        return self.own + sum(size for _, size in self.links)


@dataclass(slots=True)
class Held:
    """KV of several agents under one model: a file that they share counts once."""

    agents: int = 0
    tokens: int = 0
    size: int = 0  # bytes


def measure_folder(folder: Path) -> Usage | None:
    """Sizes and newest time of a folder's files; None if it is gone. Raises OSError."""
    own, newest, tokens = 0, 0.0, 0
    links: list[tuple[int, int]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                newest = max(newest, status.st_mtime)
                segment = SEGMENT_NAME.fullmatch(entry.name)
                tokens = max(tokens, int(segment[2]) if segment else 0)
                if status.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                    links.append((status.st_ino, status.st_size))
                else:
                    own += status.st_size
    except FileNotFoundError:
        return None
    return Usage(own, tuple(links), newest, tokens)


class DiskUsage:
    """Usage of every key."""

    def __init__(self) -> None:
        # The least recently used first, if they are `ordered`; nothing was used after `newest`.
        self._usage: dict[Key, Usage] = {}
        self._ordered, self._newest = True, 0.0
        self._holders: Counter[int] = Counter()  # names that each linked inode has here
        self._held: defaultdict[str, Held] = defaultdict(Held)  # by fingerprint

    @property
    def size(self) -> int:
        """Bytes of all KV together."""
        return sum(held.size for held in self._held.values())

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
        held = self._held[key.fingerprint]
        before = self._usage.pop(key, None)
        if before is not None:
            _take(held, before, self._holders)
        if usage is not None:
            self._put(key, usage)
            held.agents += usage.tokens > 0
            held.tokens += usage.tokens
            held.size += usage.own
            for inode, size in usage.links:
                held.size += 0 if self._holders[inode] else size
                self._holders[inode] += 1

    def without(self, fingerprint: str, agents: Iterable[str]) -> Held:
        """What agents have under a model, but for these (encoded ids)."""
        held = replace(self._held[fingerprint])
        # Names are counted down in the first map alone.
        holders = ChainMap[int, int]({}, self._holders)
        for agent in agents:
            usage = self._usage.get(Key(agent, fingerprint))
            if usage is not None:
                _take(held, usage, holders)
        return held

    def touch(self, key: Key) -> None:
        """Make a key the most recently used."""
        usage = self._usage.pop(key, None)
        if usage is not None:
            self._put(key, replace(usage, last_used=time.time()))

    def reserve(self, key: Key, change: int) -> None:
        """Count `change` more bytes for a key that is about to be written."""
        before = self._usage.get(key) or Usage(0, (), 0.0, 0)
        self.note(key, replace(before, own=before.own + change, last_used=time.time()))

    def victims(
        self, needed: int, limit: int, keep: Set[Key], last: Callable[[], Set[str]]
    ) -> list[Key]:
        """Whom to evict so that `needed` more bytes stay within `limit`, in order.

        Least recently used first; agents (encoded) in `last()` after all others; keys in
        `keep` never. Who shares what others keep stays if the rest suffices. Raises MaxDiskExceeded
        if that cannot be enough.
        """
        excess = self.size + needed - limit
        if excess <= 0:
            return []
        holders = ChainMap[int, int]({}, self._holders)
        chosen: list[Key] = []
        for key in self._in_order(keep, last()):
            excess -= _freed(self._usage[key], holders)
            chosen.append(key)
            if excess <= 0:
                return self._needed(chosen, -excess, holders)
        raise MaxDiskExceeded(needed, excess + limit - needed, limit)

    def _needed(
        self, chosen: list[Key], spare: int, holders: MutableMapping[int, int]
    ) -> list[Key]:
        """Those of the `chosen` without whom it is not enough: `spare` bytes more than were needed
        would be freed. `holders` are counted as if all had left."""
        needed = []
        for key in reversed(chosen):
            usage = self._usage[key]
            back = usage.own + sum(size for inode, size in usage.links if not holders[inode])
            if usage.links and back <= spare:
                spare -= back
                holders.update({inode: holders[inode] + 1 for inode, _ in usage.links})
            else:
                needed.append(key)
        return needed[::-1]

    def _in_order(self, keep: Set[Key], last: Set[str]) -> Iterator[Key]:
        if not self._ordered:
            by_use = sorted(self._usage.items(), key=lambda item: item[1].last_used)
            self._usage, self._ordered = dict(by_use), True
        late = []
        for key in self._usage:
            if key in keep:
                continue
            if key.agent in last:
                late.append(key)
            else:
                yield key
        yield from late

    def _put(self, key: Key, usage: Usage) -> None:
        """Behind all others, where it belongs unless it was used before them."""
        self._ordered = self._ordered and usage.last_used >= self._newest
        self._newest = max(self._newest, usage.last_used)
        self._usage[key] = usage


def _take(held: Held, usage: Usage, holders: MutableMapping[int, int]) -> None:
    """Count an agent out; counts the names of its linked files down."""
    held.agents -= usage.tokens > 0
    held.tokens -= usage.tokens
    held.size -= _freed(usage, holders)


def _freed(usage: Usage, holders: MutableMapping[int, int]) -> int:
    """Bytes that go with an agent: a linked file with its last name, which is counted down."""
    freed = usage.own
    for inode, size in usage.links:
        holders[inode] -= 1
        freed += 0 if holders[inode] else size
    return freed
