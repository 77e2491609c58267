"""What several tests of the store save, and how."""

from pathlib import Path
from typing import Any

from kvactors.actors.system.backups import back_up
from kvactors.core.cache.segment import Segment
from kvactors.persistence.backup.backup import Backup, BackupReport
from kvactors.persistence.backup.objects import Objects
from kvactors.persistence.commit.save import Save
from kvactors.persistence.files.atomic import Files
from kvactors.persistence.store.store import Store
from kvactors.persistence.testing.doubles import Outcomes

__all__ = ["F1", "RECORD", "Unsynced", "backed_up", "inodes", "kv_save", "put"]

F1 = "0" * 16
RECORD: dict[Any, Any] = {
    "role": "user",
    "text": "My cat is Biscuit.",
    "ids": [1, 2, 3],
    7: b"\x00\xff",
}


class Unsynced(Files):
    """Does not wait for the disk, where only what is written matters."""

    def full_sync(self, path: Path) -> None:
        pass

    def fsync(self, path: Path) -> None:
        pass


def put(store: Store, *saves: Save) -> Outcomes:
    """Commit the saves; what became of each."""
    outcomes = Outcomes()
    outcomes.commit(store, *saves)
    return outcomes


def backed_up(store: Store, objects: Objects) -> BackupReport:
    """Back up all of a store, as the command does."""
    names = store.agent_folders()
    return back_up(Backup(objects), store.root, names, store.files.of, lambda *_: None)


def kv_save(agent: str, *segments: Segment, fingerprint: str = F1) -> Save:
    """A save of one record and these segments."""
    return Save(agent, ({"n": segments[-1].end},), fingerprint, segments)


def inodes(root: Path) -> set[int]:
    """The files of all segments: one has as many names as agents that share it."""
    return {path.stat().st_ino for path in root.rglob("seg-*")}
