"""The KV part of a commit: segments first, the manifest last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kvactors.persistence.atomic import temp_path
from kvactors.persistence.commit import CommitPart, DirSyncs, Meter
from kvactors.persistence.errors import KvGap
from kvactors.persistence.kv import Key, KvFolders
from kvactors.persistence.ledgers import LedgerState
from kvactors.persistence.manifest import Entry, Manifest, encode_manifest
from kvactors.persistence.naming import (
    MANIFEST_NAME,
    check_fingerprint,
    encode_agent_id,
    segment_name,
)
from kvactors.persistence.segment import Segment, encode_segment

__all__ = ["KvPart"]


@dataclass(slots=True)
class KvPart(CommitPart):
    """Stores one save's segments. STEPS are run in order."""

    kv: KvFolders = field(kw_only=True)
    ledger: LedgerState = field(kw_only=True)
    pinned: set[Key] = field(kw_only=True)
    parents: DirSyncs = field(kw_only=True)
    meter: Meter = field(kw_only=True)
    fresh: list[tuple[Path, list[bytes]]] = field(init=False, default_factory=list)
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

        Raises InvalidFingerprint, KvGap, SegmentUnreadable, DiskCapExceeded, OSError.
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
        self.manifest_bytes = encode_manifest(self.manifest)
        size = len(self.manifest_bytes) + sum(entry.size for entry in self.manifest.segments)
        self.undo_actions.append(lambda: self.kv.measure(self.key))
        self.kv.make_room(self.key, size, self.pinned)

    def _encode(self, segment: Segment) -> Entry:
        chunks, digest, size = encode_segment(segment)
        name = segment_name(segment.start, segment.end, digest)
        self.fresh.append((self.kv.folder(self.key) / name, chunks))
        return Entry(segment.start, segment.end, name, size, digest, segment.tokens_hash)

    def write(self) -> None:
        """Write the segments under temporary names, unsynced."""
        files, folder = self.kv.files, self.kv.folder(self.key)
        for path in (folder.parent, folder):
            if not path.is_dir():
                self.undo_actions.append(_action(files.rmdir, path))
                files.mkdir(path)
        for path, chunks in self.fresh:
            temp = temp_path(path)
            self.undo_actions.append(_action(files.unlink, temp))
            files.write_temp(temp, chunks)
            self.meter.written += sum(map(len, chunks))

    def sync(self) -> None:
        """Put the segments on the medium."""
        for path, _ in self.fresh:
            self.kv.files.sync(temp_path(path))

    def publish(self) -> None:
        """Give the segments their names. No manifest names them yet."""
        for path, _ in self.fresh:
            if not path.exists():
                self.undo_actions.append(_action(self.kv.files.unlink, path))
            self.kv.files.rename(temp_path(path), path)

    def sync_folders(self) -> None:
        """Make the names durable before a manifest can refer to them."""
        self.kv.files.sync_dir(self.kv.folder(self.key))
        self.kv.settle(self.key, self.parents)

    def write_manifest(self) -> None:
        """Write the new manifest under its temporary name, unsynced."""
        temp = temp_path(self._manifest_path)
        self.undo_actions.append(_action(self.kv.files.unlink, temp))
        self.kv.files.write_temp(temp, [self.manifest_bytes])
        self.meter.written += len(self.manifest_bytes)

    def sync_manifest(self) -> None:
        """Put it on the medium."""
        self.kv.files.sync(temp_path(self._manifest_path))

    def publish_manifest(self) -> None:
        """The commit: the new manifest takes the old one's place."""
        self.kv.files.rename(temp_path(self._manifest_path), self._manifest_path)
        # From here on either manifest may be the one a crash leaves: both keep their segments.
        self.undo_actions.clear()
        self.undo_actions.append(lambda: self.kv.measure(self.key))

    def sync_name(self) -> None:
        """Make the commit durable."""
        self.kv.files.sync_dir(self.kv.folder(self.key))

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
        try:
            self.kv.remove_unnamed(self.key, self.manifest)
        finally:
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
