"""A store made of a snapshot: whole under its name, or not there. Any thread."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from kvactors.persistence.backup.backup import snapshots
from kvactors.persistence.backup.objects import ObjectMissing, Objects
from kvactors.persistence.backup.snapshot import (
    AgentEntry,
    Pieces,
    Snapshot,
    blob_name,
    digest_of,
)
from kvactors.persistence.errors import BackupFailed
from kvactors.persistence.files.atomic import NO_LINKS, Files
from kvactors.persistence.files.lock import StoreLock
from kvactors.persistence.files.naming import LEDGER_NAME, MANIFEST_NAME
from kvactors.persistence.store.opening import make_folder

__all__ = ["NOTES", "read_notes", "restore"]

_log = logging.getLogger(__name__)

NOTES = "backup.notes"
"""Within a restored store: the notes of its snapshot."""


def restore(
    objects: Objects,
    root: Path,
    name: str | None = None,
    part: tuple[int, int] = (1, 1),
    *,
    skip: Callable[[str], None] | None = None,
    files: Files | None = None,
) -> int:
    """Make a store at `root`, where nothing is, of the snapshot of this `name` in `objects`, by
    default the latest; how many agents it has. `part`: (2, 3) are the agents of the second of three
    stores, which have all of them together, whichever snapshots these are made of; databases are
    in the first. Every object is checked against its digest: KV of which one is damaged or missing
    is left out, and an agent, or a database, that cannot be read is told to `skip`, if there is
    one, and left out, too. All is written through `files`. Raises BackupFailed, StoreLocked while
    another restore makes it, OSError; then nothing is at `root`."""
    root = root.resolve()
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise BackupFailed(f"{root} holds something: restore into a new directory")
    if root.is_mount():
        raise BackupFailed(f"{root} is where a disk is mounted: name a folder in it")
    found = snapshots(objects)
    chosen = name or (found[-1] if found else "")
    if chosen not in found:
        what = f"there is no snapshot {name}" if name else "there is no snapshot"
        raise BackupFailed(f"{what}; there are {', '.join(found) or 'none'}")
    snapshot = Snapshot.unpack(objects.get(chosen), chosen)
    there = tuple(agent for agent in snapshot.agents if _part_of(agent, part[1]) == part[0])
    snapshot = replace(snapshot, agents=there, databases=snapshot.databases * (part[0] == 1))
    files = files or Files()
    make_folder(files, root.parent)
    making = root.with_name(root.name + ".restoring")
    making.mkdir(0o700, exist_ok=True)
    # That of the store which is made here: another restore may be at it.
    lock = StoreLock(making, files)
    try:
        agents = _Making(objects, making, skip, files).run(snapshot)
        files.rename(making, root)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    finally:
        lock.release()
    files.sync_dir(root.parent)
    return agents


def read_notes(root: Path) -> bytes:
    """What came with the snapshot of which the store at `root` was made; b"" for none. Raises
    OSError."""
    try:
        return (root / NOTES).read_bytes()
    except FileNotFoundError:
        return b""


def _part_of(agent: AgentEntry, parts: int) -> int:
    """From 1 on: by its name, as what other agents there are changes."""
    return 1 + int(digest_of(agent.encoded.encode()), 16) % parts


class _Damaged(BackupFailed):
    """An object is not what its name says."""


class _Making:
    """Writes a store's files, which `objects` have, below `root` through `files`, each synced
    before its folder; `skip` is told of agents that are left out."""

    def __init__(
        self, objects: Objects, root: Path, skip: Callable[[str], None] | None, files: Files
    ) -> None:
        self._objects = objects
        self._root = root
        self._skip = skip
        self._files = files
        # Where the file of a digest is: what agents share is a hard link again.
        self._made: dict[str, Path] = {}

    def run(self, snapshot: Snapshot) -> int:
        """All of it; how many agents it has."""
        # What a kill left of another restore.
        for left in (self._root / NOTES, *self._root.glob("*.db")):
            left.unlink(missing_ok=True)
        for folder in ("agents", "kv"):
            shutil.rmtree(self._root / folder, ignore_errors=True)
            self._files.mkdir(self._root / folder)
        agents = sum(self._agent(agent) for agent in snapshot.agents)
        for name, pieces in snapshot.databases:
            if (data := self._joined(name, pieces)) is not None:
                self._write(self._root / name, data)
        if snapshot.notes:
            self._write(self._root / NOTES, snapshot.notes)
        for made in sorted(self._folders(), reverse=True):
            self._files.sync_dir(made)
        return agents

    def _folders(self) -> Iterator[Path]:
        yield self._root
        yield from (path for path in self._root.rglob("*") if path.is_dir())

    def _agent(self, agent: AgentEntry) -> bool:
        """Whether it can be restored."""
        if (ledger := self._joined(agent.encoded, agent.ledger)) is None:
            return False
        folder = self._root / "agents" / agent.encoded
        self._files.mkdir(folder)
        self._write(folder / LEDGER_NAME, ledger)
        for kv in agent.kv:
            folder = self._root / "kv" / kv.fingerprint / agent.encoded
            folder.parent.mkdir(0o700, exist_ok=True)
            self._files.mkdir(folder)
            try:
                for file, digest in kv.segments:
                    self._segment(folder / file, digest)
                self._write(folder / MANIFEST_NAME, self._blob(kv.manifest))
            except (ObjectMissing, _Damaged) as error:
                # Only a cache: its tokens are in the ledger.
                _log.warning("KV of %s is left out: %s", agent.encoded, error)
                shutil.rmtree(folder)
                self._made = {d: path for d, path in self._made.items() if path.parent != folder}
        return True

    def _joined(self, name: str, pieces: Pieces) -> bytes | None:
        """What the `pieces` are together; None where one cannot be read and `skip` was told."""
        try:
            return b"".join(self._blob(digest) for digest, _ in pieces)
        except (ObjectMissing, _Damaged) as error:
            told = f"{name}: {error}"
            if self._skip is None:
                raise BackupFailed(
                    f"{told}; restore the others with --skip-damaged, or an earlier --snapshot"
                ) from error
            self._skip(told)
            return None

    def _segment(self, path: Path, digest: str) -> None:
        if digest in self._made:
            try:
                self._files.link(self._made[digest], path)
                return
            except OSError as error:
                # Of too many names, the next copy gets those that follow.
                if error.errno not in {*NO_LINKS, errno.EMLINK}:
                    raise
        self._write(path, self._blob(digest))
        self._made[digest] = path

    def _blob(self, digest: str) -> bytes:
        data = self._objects.get(blob_name(digest))
        if digest_of(data) != digest:
            raise _Damaged(f"{blob_name(digest)} is damaged: it is not what its name says")
        return data

    def _write(self, path: Path, data: bytes) -> None:
        self._files.write_temp(path, [data])
        self._files.sync(path)
