"""Where a backup is restored to: an empty place, whatever it is named, and by one at a time."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore
from store_saves import F1, RECORD, put

from kvactors.persistence import Save, Store
from kvactors.persistence.backup.backup import Backup, BackupReport, snapshots
from kvactors.persistence.backup.objects import Objects, open_objects
from kvactors.persistence.backup.restore import NOTES, read_notes, restore
from kvactors.persistence.backup.snapshot import blob_name, digest_of
from kvactors.persistence.errors import BackupFailed, StoreAlreadyOpen, StoreLocked
from kvactors.persistence.testing.doubles import FailingFiles, example_segment

SEGMENTS = (example_segment(0, 256), example_segment(256, 300))


@pytest.fixture
def objects(store: Store) -> Objects:
    """A backup of alice."""
    put(store, Save("alice", (RECORD,), F1, SEGMENTS))
    objects = Objects(MemoryStore())
    back_up(store, Backup(objects))
    return objects


def back_up(store: Store, backup: Backup) -> BackupReport:
    for name in store.agent_folders():
        held = store.files.of(name)
        assert held is not None
        backup.add(held)
    return backup.finish()


def test_a_backup_that_checks_copies_damaged_objects_again(
    store: Store, tmp_path: Path, objects: Objects
) -> None:
    for name in objects.names("blobs"):
        objects.put(name, bytes(len(objects.get(name))))

    assert back_up(store, Backup(objects)).added == 0
    with pytest.raises(BackupFailed, match="damaged"):
        restore(objects, tmp_path / "new")
    report = back_up(store, Backup(objects, check=True))

    assert report.added == report.nbytes
    assert restore(objects, tmp_path / "new") == 1
    assert Store(tmp_path / "new").read_kv("alice", F1) == SEGMENTS


@pytest.mark.parametrize("lost", [True, False], ids=["missing", "damaged"])
def test_an_agent_whose_ledger_is_gone_is_left_out_where_that_is_asked_for(
    store: Store, tmp_path: Path, objects: Objects, *, lost: bool
) -> None:
    memory = MemoryStore()
    put(store, Save("bob", ({"n": 1},), F1, (example_segment(0, 256, seed=1),)))
    back_up(store, Backup(Objects(memory)))
    (ledger,) = tmp_path.glob("store/agents/bob-*/ledger.log")
    name = blob_name(digest_of(ledger.read_bytes()))
    obstore.delete(memory, name) if lost else Objects(memory).put(name, b"something else")

    with pytest.raises(BackupFailed, match=rf"bob-.*{name}.*--skip-damaged"):
        restore(Objects(memory), tmp_path / "new")
    skipped: list[str] = []
    assert restore(Objects(memory), tmp_path / "new", skip=skipped.append) == 1

    (told,) = skipped
    assert told.startswith("bob-")
    assert name in told
    again = Store(tmp_path / "new")
    assert list(again.verify()) == []
    assert [stored.agent_id for stored in again.agents()] == ["alice"]
    assert again.read_kv("alice", F1) == SEGMENTS


def test_two_restores_at_once_do_not_mix(tmp_path: Path, objects: Objects) -> None:
    refused = list[str]()

    class Meanwhile(Objects):
        """Another restore is begun at each object."""

        def names(self, prefix: str) -> Iterator[str]:
            return objects.names(prefix)

        def get(self, name: str) -> bytes:
            if name.startswith("blobs/"):
                with pytest.raises((StoreLocked, StoreAlreadyOpen), match="restoring"):
                    restore(objects, tmp_path / "new")
                refused.append(name)
            return objects.get(name)

    assert restore(Meanwhile(None), tmp_path / "new") == 1
    assert refused
    assert Store(tmp_path / "new").read_kv("alice", F1) == SEGMENTS


def test_notes_that_a_killed_restore_left_are_not_of_another_snapshot(
    tmp_path: Path, objects: Objects
) -> None:
    (tmp_path / "new.restoring").mkdir()
    (tmp_path / "new.restoring" / NOTES).write_bytes(b"of another snapshot")

    restore(objects, tmp_path / "new")

    assert read_notes(tmp_path / "new") == b""


def test_an_empty_directory_behind_a_link_becomes_a_store(tmp_path: Path, objects: Objects) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")

    assert restore(objects, tmp_path / "link") == 1
    assert (tmp_path / "there" / "agents").is_dir()


def test_an_empty_working_directory_becomes_a_store(
    tmp_path: Path, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    assert restore(objects, Path()) == 1
    assert Store(tmp_path / "here").read_ledger("alice") == (RECORD,)


def test_a_snapshot_that_was_cut_off_stops_no_further_backup(
    store: Store, tmp_path: Path, objects: Objects
) -> None:
    objects.put(snapshots(objects)[-1], b"")

    report = Backup(objects).finish()

    assert snapshots(objects)[-1] == report.name
    assert restore(objects, tmp_path / "new") == 0


def test_a_file_that_strayed_among_the_snapshots_is_none(
    store: Store, tmp_path: Path, objects: Objects
) -> None:
    (first,) = snapshots(objects)
    for name in ("Thumbs.db", "old/20250101T000000.000000Z.msgpack", "zz.msgpack"):
        objects.put(f"snapshots/{name}", b"stray")

    report = back_up(store, Backup(objects))

    assert snapshots(objects) == [first, report.name]
    # As it was called by whom a stray file was the latest.
    objects.put("snapshots/Thumbs.db__.msgpack", objects.get(report.name))
    assert snapshots(objects)[-1] == "snapshots/Thumbs.db__.msgpack"
    assert restore(objects, tmp_path / "new") == 1


def test_a_segment_with_as_many_names_as_a_file_may_have_is_copied_for_the_agents_that_follow(
    store: Store, tmp_path: Path, objects: Objects
) -> None:
    for child in ("bob", "carol", "dave"):
        store.fork("alice", child)
    back_up(store, Backup(objects))
    files = FailingFiles(name="link", path="*/carol-*", code=errno.EMLINK)

    assert restore(objects, tmp_path / "new", files=files) == 4

    counts = [path.stat().st_nlink for path in tmp_path.glob("new/kv/*/*/seg-*")]
    assert counts == [2] * 4 * len(SEGMENTS)
    assert Store(tmp_path / "new").read_kv("dave", F1) == SEGMENTS


def test_a_backup_and_what_is_restored_of_it_are_private_whatever_the_umask(
    store: Store, tmp_path: Path, objects: Objects
) -> None:
    (tmp_path / "disk").mkdir()
    before = os.umask(0)
    try:
        back_up(store, Backup(open_objects((tmp_path / "disk").as_uri())))
        restore(objects, tmp_path / "new")
    finally:
        os.umask(before)

    made = [*sorted(tmp_path.glob("disk/*")), tmp_path / "new", *tmp_path.glob("new/**/*")]
    for path in made:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert [path.name for path in made[:2]] == ["blobs", "snapshots"]
