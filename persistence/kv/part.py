"""The KV part of a commit: segments first, the manifest last. Persistence thread only.

Segments that the new manifest no longer names (the partial ones of a block that closed, or
all after a divergence) are deleted when the new manifest is durable, and not before: until
then a crash may bring the old one back. A crash between the two leaves them as orphans,
which the agent's next sweep deletes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kvactors.core.cache.segment import Segment
from kvactors.persistence.commit.steps import CommitPart, GroupSyncs, WriteCounter
from kvactors.persistence.errors import KvGap
from kvactors.persistence.files.atomic import Buffer, temp_path
from kvactors.persistence.files.naming import (
    MANIFEST_NAME,
    check_fingerprint,
    encode_agent_id,
    segment_name,
)
from kvactors.persistence.files.segment import encode_segment, seal_segment
from kvactors.persistence.kv.disk_limit import DiskLimit, Eviction
from kvactors.persistence.kv.disk_usage import Key
from kvactors.persistence.kv.folders import KvFolders
from kvactors.persistence.kv.manifest import Entry, Manifest, encode_manifest
from kvactors.persistence.ledger.folder import LedgerState

__all__ = ["Claims", "KvPart"]


@dataclass(slots=True)
class _Fresh:
    """A segment to store. `source`: a file with the same content, linked instead."""

    path: Path
    chunks: list[Buffer]
    digest: str
    size: int
    source: Path | None


Claims = dict[tuple[str, str], Path]
"""Fingerprint and name of segments that an earlier save of the group writes, and where."""


@dataclass(slots=True)
class KvPart(CommitPart):
    """Stores one save's segments. STEPS are run in order."""

    kv: KvFolders = field(kw_only=True)
    limit: DiskLimit = field(kw_only=True)
    ledger: LedgerState = field(kw_only=True)
    eviction: Eviction = field(kw_only=True)
    claims: Claims = field(kw_only=True)
    syncs: GroupSyncs = field(kw_only=True)
    counter: WriteCounter = field(kw_only=True)
    pace: Callable[[], object] = field(kw_only=True)
    fresh: list[_Fresh] = field(init=False, default_factory=list)
    manifest: Manifest = field(init=False)
    manifest_bytes: bytes = field(init=False, default=b"")

    @property
    def key(self) -> Key:
        """Agent and fingerprint of the save."""
        return Key(encode_agent_id(self.save.agent_id), self.save.fingerprint or "")

    @property
    def _manifest_path(self) -> Path:
        return self.kv.folder(self.key) / MANIFEST_NAME

    def plan(self) -> None:
        """Encode the files, check that they continue what is stored, and make room.

        Bytes that the commit replaces count as free, so `kv/` may exceed the limit by them
        until it is done. Raises InvalidFingerprint, KvGap, NewerFormat, SegmentUnreadable,
        MaxDiskExceeded, OSError.
        """
        check_fingerprint(self.save.fingerprint or "")
        stored = self.kv.manifest(self.key)
        kept = _kept(self.save.segments, stored)
        added = [self._encode(segment) for segment in self.save.segments]
        self.manifest = Manifest(
            self.save.agent_id,
            self.key.fingerprint,
            self.ledger.length,
            self.ledger.checksum,
            (*kept, *added),
        )
        self.manifest_bytes = encode_manifest(self.manifest, self.kv.sealing)
        written = sum(item.size for item in self.fresh if item.source is None)
        gone = [entry.file for entry in stored.segments[len(kept) :]] if stored else []
        freed = sum(self._frees(name) for name in [*gone, MANIFEST_NAME])
        self.undo_actions.append(lambda: self.kv.measure(self.key))
        change = len(self.manifest_bytes) + written - freed
        self.limit.make_room(self.key, change, self.eviction)

    def _encode(self, segment: Segment) -> Entry:
        chunks, digest, size = encode_segment(segment, self.kv.sealing)
        name = segment_name(segment.start, segment.end, digest)
        path = self.kv.folder(self.key) / name
        claim = (self.key.fingerprint, name)
        source = self.kv.holders.find(*claim, size) or self.claims.get(claim)
        if source is None and self.kv.holders.share:
            self.claims[claim] = path
            self.undo_actions.append(lambda: self.claims.pop(claim))
        self.fresh.append(_Fresh(path, chunks, digest, size, source))
        self.pace()
        return Entry(segment.start, segment.end, name, size, digest, segment.tokens_hash)

    def _frees(self, name: str) -> int:
        """Bytes that deleting one of the agent's files gives back."""
        try:
            status = (self.kv.folder(self.key) / name).lstat()
        except FileNotFoundError:
            return 0
        return status.st_size if status.st_nlink == 1 else 0

    def write(self) -> None:
        """Write the segments that nobody has under temporary names, unsynced."""
        files, folder = self.kv.files, self.kv.folder(self.key)
        for path in (folder.parent, folder):
            if not path.is_dir():
                self.undo_actions.append(_action(files.rmdir, path))
                files.mkdir(path)
        for item in self.fresh:
            if item.source is None:
                self._write(item)

    def _write(self, item: _Fresh) -> None:
        temp = temp_path(item.path)
        self.undo_actions.append(_action(self.kv.files.unlink, temp))
        fingerprint, sealing = self.key.fingerprint, self.kv.sealing
        chunks = seal_segment(item.chunks, fingerprint, item.digest, sealing)
        self.kv.files.write_temp(temp, chunks)
        self.counter.written += item.size
        self.pace()

    def sync(self) -> None:
        """Put the segments on the medium."""
        for item in self.fresh:
            if item.source is None:
                self.syncs.sync(temp_path(item.path))
                self.pace()

    def publish(self) -> None:
        """Give the segments their names. No manifest names them yet. Raises MaxDiskExceeded,
        OSError."""
        for item in self.fresh:
            if not item.path.exists():
                self.undo_actions.append(_action(self.kv.files.unlink, item.path))
            if item.source is not None:
                self.undo_actions.append(_action(self.kv.files.unlink, temp_path(item.path)))
                if self.kv.holders.link(self.kv.files, item.source, item.path):
                    continue
                # Whoever has it could not give it: the save that was to write it failed, or it
                # made room. It counted as free.
                self.limit.make_room(self.key, item.size, self.eviction)
                self._write(item)
                # Not with the step's end: it has its name before that.
                self.kv.files.sync(temp_path(item.path))
            self.kv.files.rename(temp_path(item.path), item.path)

    def sync_folders(self) -> None:
        """Make the names durable before a manifest can refer to them."""
        self.syncs.sync(self.kv.folder(self.key))
        self.undo_actions.append(lambda: self.kv.settled.discard(self.key))
        self.kv.settle(self.key, self.syncs.sync)

    def write_manifest(self) -> None:
        """Write the new manifest under its temporary name, unsynced."""
        temp = temp_path(self._manifest_path)
        self.undo_actions.append(_action(self.kv.files.unlink, temp))
        self.kv.files.write_temp(temp, [self.manifest_bytes])
        self.counter.written += len(self.manifest_bytes)

    def sync_manifest(self) -> None:
        """Put it on the medium."""
        self.syncs.sync(temp_path(self._manifest_path))

    def publish_manifest(self) -> None:
        """The commit: the new manifest takes the old one's place."""
        self.kv.files.rename(temp_path(self._manifest_path), self._manifest_path)
        # From here on either manifest may be the one a crash leaves: both keep their segments.
        self.undo_actions.clear()
        self.undo_actions.append(lambda: self.kv.measure(self.key))

    def sync_name(self) -> None:
        """Make the commit durable."""
        self.syncs.sync(self.kv.folder(self.key))

    STEPS = (
        plan,
        write,
        sync,
        publish,
        sync_folders,
        write_manifest,
        sync_manifest,
        publish_manifest,
        sync_name,
    )

    def finish(self) -> None:
        """Delete what the commit replaced. Raises OSError, and the next sweep does it."""
        for item in self.fresh:
            if item.source is None:
                self.kv.holders.note(self.key, item.path.name)
        try:
            self.kv.remove_unnamed(self.key, self.manifest)
        finally:
            for folder in {item.source.parent for item in self.fresh if item.source}:
                self.kv.measure(Key(folder.name, folder.parent.name))
            self.kv.measure(self.key)


def _action(act: Callable[[Path], None], path: Path) -> Callable[[], None]:
    return lambda: act(path)


def _kept(segments: tuple[Segment, ...], stored: Manifest | None) -> tuple[Entry, ...]:
    """Stored entries that stay; raises KvGap unless the segments continue them exactly."""
    first = position = segments[0].start
    for segment in segments:
        if segment.start != position or segment.end <= position:
            raise KvGap(
                f"segment [{segment.start}, {segment.end}) where one from token {position} on "
                "is due: segments must be contiguous, ascending and not empty"
            )
        position = segment.end
    entries = stored.segments if stored else ()
    kept = tuple(entry for entry in entries if entry.start < first)
    covered = kept[-1].end if kept else 0
    if covered != first:
        raise KvGap(
            f"segments from token {first} on do not continue the stored KV, of which [0, {covered})"
            f" would stay: save from token {kept[-1].start if covered > first else covered} on"
        )
    return kept
