"""The folder `kv/`: reading, setting aside, and the disk cap.

Everything in it is a cache of the ledgers. What is bad is set aside: renamed to
`<name>.bad` beside it, with a warning that names the file; `forget` and eviction
delete such files.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from kvactors.persistence.atomic import Files, replace_file
from kvactors.persistence.commit import DirSyncs
from kvactors.persistence.errors import DiskCapExceeded, SegmentUnreadable
from kvactors.persistence.ledger import Mark
from kvactors.persistence.manifest import Entry, Manifest, encode_manifest, read_manifest
from kvactors.persistence.naming import (
    BAD_SUFFIX,
    MANIFEST_NAME,
    SEGMENT_NAME,
    TEMP_SUFFIX,
    encode_agent_id,
)
from kvactors.persistence.segment import Segment, read_segment

__all__ = ["Key", "KvFolders", "Usage"]

_log = logging.getLogger("kvactors")


class Key(NamedTuple):
    """One agent's KV under one model."""

    agent: str  # encoded id
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What a folder costs. Sizes of files in bytes; epoch seconds."""

    size: int
    last_used: float


class KvFolders:
    """All KV of a store. Persistence thread only."""

    def __init__(self, files: Files, root: Path, cap: int | None) -> None:
        self.files = files
        self.root = root
        self._cap = cap
        self._usage: dict[Key, Usage] = {}
        self._by_agent: dict[str, set[str]] = {}
        self._settled: set[Key] = set()
        self.size = 0

    def folder(self, key: Key) -> Path:
        """Where a key's files stand."""
        return self.root / key.fingerprint / key.agent

    def keys_of(self, encoded: str) -> list[Key]:
        """The KV that an agent has, by fingerprint."""
        return [Key(encoded, name) for name in sorted(self._by_agent.get(encoded, ()))]

    def agents(self) -> list[str]:
        """Encoded ids of the agents that have a KV folder."""
        return sorted(self._by_agent)

    def usage(self, key: Key) -> Usage | None:
        """What a key costs; None if it has nothing."""
        return self._usage.get(key)

    def manifest(self, key: Key) -> Manifest | None:
        """The commit record, or None; one that cannot be used is set aside. Raises OSError."""
        path = self.folder(key) / MANIFEST_NAME
        try:
            found = read_manifest(path)
            if found is None:
                return None
            if (encode_agent_id(found.agent_id), found.fingerprint) != key:
                raise SegmentUnreadable(f"manifest: it belongs to {found.agent_id!r}")
        except SegmentUnreadable as error:
            self._set_aside(path, str(error))
            return None
        return found

    def marks(self, encoded: str) -> list[Mark]:
        """What the agent's manifests say about its ledger."""
        marks = []
        for key in self.keys_of(encoded):
            found = self.manifest(key)
            if found is not None:
                name = f"kv/{key.fingerprint}/{key.agent}/{MANIFEST_NAME}"
                marks.append(Mark(found.ledger_bytes, found.ledger_checksum, name))
        return marks

    def read(self, agent_id: str, fingerprint: str) -> tuple[Segment, ...]:
        """Every usable segment from token 0 on; what is bad ends it and is set aside."""
        key = Key(encode_agent_id(agent_id), fingerprint)
        found = self.manifest(key)
        if found is None or found.agent_id != agent_id:
            return ()
        segments: list[Segment] = []
        for entry in found.segments:
            segment = self._read_one(key, entry)
            if segment is None:
                self._keep_first(key, found, len(segments))
                break
            segments.append(segment)
        usage = self._usage.get(key)
        if usage is not None:
            self._note(key, replace(usage, last_used=time.time()))
        return tuple(segments)

    def _read_one(self, key: Key, entry: Entry) -> Segment | None:
        path = self.folder(key) / entry.file
        try:
            segment = read_segment(path, entry.size, entry.digest)
            if (segment.start, segment.end) != (entry.start, entry.end):
                raise SegmentUnreadable(f"it holds tokens [{segment.start}, {segment.end})")
        except FileNotFoundError:
            _log.warning("KV segment %s is missing; its tokens will be prefilled again", path)
            return None
        except OSError as error:
            _log.warning("KV segment %s cannot be read: %s", path, error)
            return None
        except SegmentUnreadable as error:
            self._set_aside(path, str(error))
            return None
        return segment

    def _set_aside(self, path: Path, reason: str) -> None:
        bad = path.with_name(path.name + BAD_SUFFIX)
        _log.warning(
            "cannot use %s: %s. It is set aside as %s; its tokens will be prefilled again",
            path,
            reason,
            bad.name,
        )
        try:
            self.files.rename(path, bad)
        except OSError as error:
            _log.warning("could not set %s aside: %s", path, error)

    def _keep_first(self, key: Key, found: Manifest, count: int) -> None:
        """Let the manifest end before a bad segment, so that the next save continues there."""
        kept = replace(found, segments=found.segments[:count])
        try:
            replace_file(self.files, self.folder(key) / MANIFEST_NAME, encode_manifest(kept))
            self.remove_unnamed(key, kept)
            self.measure(key)
        except OSError as error:
            _log.warning("could not shorten the manifest in %s: %s", self.folder(key), error)

    def remove_unnamed(self, key: Key, manifest: Manifest | None) -> None:
        """Delete temporary files, and segments that the (durable) manifest does not name."""
        named = {entry.file for entry in manifest.segments} if manifest else set()
        for path in sorted(self.folder(key).iterdir()):
            orphan = SEGMENT_NAME.fullmatch(path.name) and path.name not in named
            if orphan or path.name.endswith(TEMP_SUFFIX):
                self.files.unlink(path)

    def measure(self, key: Key) -> None:
        """Take a folder's size and age from the disk; forgets one that is gone."""
        size, newest = 0, 0.0
        folder = self.folder(key)
        for path in folder.iterdir() if folder.is_dir() else ():
            status = path.stat()
            size += status.st_size
            newest = max(newest, status.st_mtime)
        self._note(key, Usage(size, newest) if folder.is_dir() else None)

    def _note(self, key: Key, usage: Usage | None) -> None:
        before = self._usage.pop(key, None)
        self.size -= before.size if before else 0
        if usage is not None:
            self._usage[key] = usage
            self.size += usage.size
            self._by_agent.setdefault(key.agent, set()).add(key.fingerprint)
        elif key.agent in self._by_agent:
            self._by_agent[key.agent].discard(key.fingerprint)
            if not self._by_agent[key.agent]:
                del self._by_agent[key.agent]

    def make_room(self, key: Key, size: int, pinned: set[Key]) -> None:
        """Evict until `key` may take `size` bytes, least recently used first; reserves them.

        Pinned keys are never evicted. Raises DiskCapExceeded before evicting anything if
        it cannot succeed; OSError if an eviction fails. Bytes that this commit replaces
        are not counted, so `kv/` may exceed the cap by them until it is done.
        """
        before = self._usage.get(key)
        if self._cap is not None:
            excess = self.size - (before.size if before else 0) + size - self._cap
            self._evict(key, size, excess, pinned)
        self._note(key, Usage(size, time.time()))

    def _evict(self, key: Key, size: int, excess: int, pinned: set[Key]) -> None:
        if excess <= 0:
            return
        free = [other for other in self._usage if other != key and other not in pinned]
        evictable = sum(self._usage[other].size for other in free)
        if excess > evictable:
            assert self._cap is not None
            raise DiskCapExceeded(size, excess - evictable + self._cap - size, self._cap)
        for other in sorted(free, key=lambda item: self._usage[item].last_used):
            if excess <= 0:
                return
            excess -= self._usage[other].size
            _log.info("disk cap: evicting KV %s", self.folder(other))
            self.drop(other)

    def drop(self, key: Key) -> None:
        """Delete all of a key's KV, manifest first and durably. Raises OSError."""
        self._settled.discard(key)
        try:
            if self.folder(key).is_dir():
                self._delete(self.folder(key))
        finally:
            self.measure(key)

    def _delete(self, folder: Path) -> None:
        paths = sorted(folder.iterdir())
        # Segments last: without a manifest, what a crash leaves of them is swept.
        for path in paths:
            if not SEGMENT_NAME.fullmatch(path.name):
                self.files.unlink(path)
        self.files.sync_dir(folder)
        for path in paths:
            if SEGMENT_NAME.fullmatch(path.name):
                self.files.unlink(path)
        self.files.rmdir(folder)
        if not any(folder.parent.iterdir()):
            self.files.rmdir(folder.parent)

    def settle(self, key: Key, parents: DirSyncs) -> None:
        """Make a folder's own name durable, once; raises OSError."""
        if key not in self._settled:
            parents.sync(self.folder(key).parent)
            parents.sync(self.root)
            self._settled.add(key)
