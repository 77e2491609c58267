"""A backup: what an object store lacks of a store goes there. Any thread, one at a time: it is
given an agent's files as they stand, and reads segments, which never change.

It is never relied on for who owns an agent: two that write at once leave two snapshots.
"""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvactors.persistence.backup.objects import Objects
from kvactors.persistence.backup.snapshot import (
    BLOBS,
    SNAPSHOTS,
    AgentEntry,
    KVEntry,
    Pieces,
    Snapshot,
    blob_name,
    digest_of,
)
from kvactors.persistence.errors import BackupFailed
from kvactors.persistence.files.naming import DATABASE_NAME
from kvactors.persistence.store.agent_files import HeldFiles, HeldKV

__all__ = ["Backup", "BackupReport", "snapshots"]

_log = logging.getLogger(__name__)

# Of a snapshot: its moment; a name and an underline where a stray file was taken for the latest.
_NAME = re.compile(rf"{SNAPSHOTS}/(\d{{8}}T\d{{6}}\.\d{{6}}Z_*|[^/]*_)\.msgpack", re.ASCII)

# A ledger of more pieces is copied whole again: a restore asks for each.
MOST_PIECES = 64
# Of a database, bytes: its pages are changed in place.
PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class BackupReport:
    """The name of a snapshot, its agents, and bytes: all of it, and those that were new. `skipped`
    says which agents, or databases beside them, could not be read, and why: of these it has what
    the snapshot before had."""

    name: str
    agents: int
    nbytes: int
    added: int
    skipped: tuple[str, ...] = ()


class Backup:
    """One, into `objects`; with `check` all that is there is read, and what is damaged is put there
    anew. Raises BackupFailed."""

    def __init__(self, objects: Objects, *, check: bool = False) -> None:
        self._objects = objects
        # With their sizes: of a file, a loss of power may have left less than was written.
        self._there = {name.rpartition("/")[2]: size for name, size in objects.sizes(BLOBS)}
        if check:
            self._there = {d: size for d, size in self._there.items() if _whole(objects, d)}
        names = snapshots(objects)
        self._latest = names[-1] if names else ""
        before = _latest_readable(objects, names)
        self._before = {agent.encoded: agent for agent in before.agents}
        # Digests of files that were read before: a name says what is in it.
        self._files = {
            (agent.encoded, kv.fingerprint, file): digest
            for agent in before.agents
            for kv in agent.kv
            for file, digest in kv.segments
        }
        self._databases_before = dict(before.databases)
        self._databases: dict[str, Pieces] = {}
        self._agents: list[AgentEntry] = []
        self._taken: list[AgentEntry] = []
        self._skipped: list[str] = []
        self.nbytes = self.added = 0
        """Of what was added by now, and of that what was new."""

    def add(self, held: HeldFiles) -> AgentEntry:
        """An agent. Raises FileNotFoundError where a segment has left since its files were looked
        up: look again."""
        told = self.nbytes
        try:
            kv = tuple(self._kv(held.encoded, one) for one in held.kv)
            before = self._before.get(held.encoded)
            ledger = self._ledger(held.ledger, before.ledger if before else ())
        except BaseException:
            self.nbytes = told  # What is looked at again is told once.
            raise
        self._agents.append(entry := AgentEntry(held.encoded, ledger, kv))
        return entry

    def add_databases(self, root: Path) -> None:
        """Those that lie beside the agents of the store at `root`, a server's `clients.db`, each as
        of one moment, whoever writes to it."""
        for path in sorted(p for p in root.glob("*.db") if DATABASE_NAME.fullmatch(p.name)):
            try:
                data = _serialized(path)
            except sqlite3.Error as error:
                _log.warning("%s is skipped by a backup: %s", path, error)
                self._skipped.append(f"{path.name}: {error}")
                self._databases[path.name] = self._databases_before.get(path.name, ())
                continue
            pieces = [data[begin : begin + PIECE] for begin in range(0, len(data), PIECE)]
            self._databases[path.name] = tuple((self._put(piece), len(piece)) for piece in pieces)

    def skip(self, encoded: str, reason: str) -> None:
        """An agent that cannot be read, for this `reason`: it stays as it was in the snapshot
        before, if it was there."""
        if (before := self._before.get(encoded)) is not None:
            self._agents.append(before)
        self._skipped.append(reason)

    def take(self, entry: AgentEntry, *, nbytes: int, added: int) -> None:
        """An agent whose files another process has put there, as `entry` says: that many bytes
        (`nbytes`), of which so many were new (`added`)."""
        self._agents.append(entry)
        self._taken.append(entry)
        self.nbytes += nbytes
        self.added += added

    def finish(self, notes: bytes = b"") -> BackupReport:
        """Name all that was added, with these `notes`: from now on it can be restored. Raises
        BackupFailed where something is not there that was taken."""
        self._check_taken()
        name = f"{SNAPSHOTS}/{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.msgpack"
        if name <= self._latest:
            # The clock went back, or another machine's goes ahead: the latest is the last in order.
            name = f"{self._latest.removesuffix('.msgpack')}_.msgpack"
        databases = tuple((name, pieces) for name, pieces in self._databases.items() if pieces)
        self._objects.put(name, Snapshot(tuple(self._agents), notes, databases).pack())
        skipped = tuple(self._skipped)
        return BackupReport(name, len(self._agents), self.nbytes, self.added, skipped)

    def _check_taken(self) -> None:
        """Who put it there may have had another folder under the same URL."""
        if not self._taken:
            return
        there = {name.rpartition("/")[2] for name in self._objects.names(BLOBS)}
        for entry in self._taken:
            for digest in entry.objects():
                if digest not in there:
                    raise BackupFailed(
                        f"{blob_name(digest)}, of {entry.encoded}, is not there: all nodes and "
                        "this program must reach one object store by this URL"
                    )

    def _kv(self, encoded: str, held: HeldKV) -> KVEntry:
        segments = []
        for path in held.segments:
            digest = self._files.get((encoded, held.fingerprint, path.name), "")
            size = path.stat().st_size
            if self._there.get(digest) == size:
                self.nbytes += size
            else:
                digest = self._put(path.read_bytes())
            segments.append((path.name, digest))
        return KVEntry(held.fingerprint, self._put(held.manifest), tuple(segments))

    def _ledger(self, data: bytes, before: Pieces) -> Pieces:
        """The pieces of a ledger, those of `before` among them if it begins with them."""
        kept = before if len(before) < MOST_PIECES and self._begins(data, before) else ()
        begin = sum(size for _, size in kept)
        self.nbytes += begin
        if begin == len(data):
            return kept
        return (*kept, (self._put(data[begin:]), len(data) - begin))

    def _begins(self, data: bytes, pieces: Pieces) -> bool:
        """Whether `data` begins with these `pieces`, and all of them are still there."""
        begin = 0
        for digest, size in pieces:
            if digest_of(data[begin : begin + size]) != digest or self._there.get(digest) != size:
                return False
            begin += size
        return True

    def _put(self, data: bytes) -> str:
        digest = digest_of(data)
        self.nbytes += len(data)
        if self._there.get(digest) != len(data):
            self._objects.put(blob_name(digest), data)
            self._there[digest] = len(data)
            self.added += len(data)
        return digest


def _whole(objects: Objects, digest: str) -> bool:
    found = digest_of(objects.get(blob_name(digest)))
    if found != digest:
        _log.warning("%s is damaged", blob_name(digest))
    return found == digest


def _serialized(path: Path) -> bytes:
    """A database as one file, what its log has written down. Raises sqlite3.Error."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True)) as database:
        return database.serialize()


def _latest_readable(objects: Objects, names: Sequence[str]) -> Snapshot:
    """The last snapshot of these `names` that is whole: of the latest, a loss of power may have
    left less than was written."""
    for name in reversed(names):
        try:
            return Snapshot.unpack(objects.get(name), name)
        except BackupFailed as error:
            _log.warning("%s: the one before is gone on from", error)
    return Snapshot(())


def snapshots(objects: Objects) -> list[str]:
    """The names of those that are there, the latest last; other files beside them are none. Raises
    BackupFailed."""
    return sorted(name for name in objects.names(SNAPSHOTS) if _NAME.fullmatch(name))
