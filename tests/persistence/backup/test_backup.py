"""Backups: a store in an object store, by content, and another store made of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore
from store_saves import F1, RECORD, inodes, kv_save, put

from kvactors.persistence import Save, Store
from kvactors.persistence.backup.backup import MOST_PIECES, Backup, BackupReport
from kvactors.persistence.backup.objects import Objects
from kvactors.persistence.backup.restore import restore
from kvactors.persistence.errors import BackupFailed
from kvactors.persistence.testing.doubles import example_segment

AHEAD = "snapshots/29990101T000000.000000Z.msgpack"
SEGMENTS = (example_segment(0, 256), example_segment(256, 300))


def back_up(store: Store, objects: Objects) -> BackupReport:
    """All agents of a store, as they stand."""
    backup = Backup(objects)
    for name in store.agent_folders():
        held = store.files.of(name)
        assert held is not None
        backup.add(held)
    return backup.finish()


@pytest.fixture
def objects() -> Objects:
    return Objects(MemoryStore())


def blobs(objects: Objects) -> set[str]:
    return set(objects.names("blobs"))


def test_a_store_comes_back_as_it_was_and_what_agents_share_they_share(
    store: Store, tmp_path: Path, objects: Objects
) -> None:
    put(store, Save("alice", (RECORD,), F1, SEGMENTS), Save("böb", ({"n": 1},), None, ()))
    store.fork("alice", "child")
    back_up(store, objects)

    assert restore(objects, tmp_path / "new") == 3
    again = Store(tmp_path / "new")

    assert list(again.verify()) == []
    for agent in ("alice", "child"):
        assert again.read_ledger(agent) == (RECORD,)
        assert again.read_kv(agent, F1) == SEGMENTS
    assert again.read_ledger("böb") == ({"n": 1},)
    assert len(inodes(tmp_path / "new")) == len(SEGMENTS)
    put(again, kv_save("alice", example_segment(256, 400)))
    assert again.kv_extent("child", F1) == 300


def test_only_what_is_new_is_copied(store: Store, tmp_path: Path, objects: Objects) -> None:
    put(store, Save("alice", (RECORD,), F1, SEGMENTS))
    first = back_up(store, objects)
    before = blobs(objects)

    again = back_up(store, objects)
    assert (again.added, again.nbytes) == (0, first.nbytes)
    assert blobs(objects) == before

    put(store, Save("alice", ({"n": 2},), None, ()))
    third = back_up(store, objects)

    assert len(blobs(objects) - before) == 1
    assert 0 < third.added < 200
    assert restore(objects, tmp_path / "new") == 1
    assert Store(tmp_path / "new").read_ledger("alice") == (RECORD, {"n": 2})


def test_an_older_snapshot_can_be_restored(store: Store, tmp_path: Path, objects: Objects) -> None:
    put(store, Save("alice", (RECORD,), F1, SEGMENTS))
    first = back_up(store, objects)
    store.forget("alice")
    put(store, Save("alice", ({"another": 1},), None, ()))
    back_up(store, objects)

    restore(objects, tmp_path / "old", first.name)
    restore(objects, tmp_path / "new")

    assert Store(tmp_path / "old").read_ledger("alice") == (RECORD,)
    assert Store(tmp_path / "new").read_ledger("alice") == ({"another": 1},)


def test_the_latest_is_the_last_that_was_made_whatever_the_clock_said(
    store: Store, tmp_path: Path, objects: Objects
) -> None:
    put(store, Save("alice", (RECORD,), None, ()))
    first = back_up(store, objects)
    objects.put(AHEAD, objects.get(first.name))
    for number in range(3):
        put(store, Save("alice", ({"n": number},), None, ()))
        assert back_up(store, objects).name > AHEAD

    restore(objects, tmp_path / "new")

    assert Store(tmp_path / "new").read_ledger("alice") == (RECORD, {"n": 0}, {"n": 1}, {"n": 2})


def test_a_ledger_of_many_pieces_is_copied_whole_again(
    store: Store, tmp_path: Path, objects: Objects
) -> None:
    for number in range(MOST_PIECES + 3):
        put(store, Save("alice", ({"n": number},), None, ()))
        back_up(store, objects)

    restore(objects, tmp_path / "new")

    records = Store(tmp_path / "new").read_ledger("alice")
    assert records == tuple({"n": number} for number in range(MOST_PIECES + 3))


def test_a_sealed_store_stays_sealed(tmp_path: Path, objects: Objects) -> None:
    store = Store(tmp_path / "sealed", encryption_key=b"k" * 32)
    put(store, Save("alice", ({"text": "My cat is Biscuit."},), F1, SEGMENTS))
    back_up(store, objects)

    assert not any(b"Biscuit" in objects.get(name) for name in blobs(objects))
    restore(objects, tmp_path / "new")

    again = Store(tmp_path / "new", encryption_key=b"k" * 32)
    assert again.read_ledger("alice") == ({"text": "My cat is Biscuit."},)
    assert again.read_kv("alice", F1) == SEGMENTS


def test_a_torn_last_frame_is_not_copied(store: Store, tmp_path: Path, objects: Objects) -> None:
    put(store, Save("alice", (RECORD,), None, ()))
    [ledger] = store.root.glob("agents/*/ledger.log")
    with ledger.open("ab") as file:
        file.write(b"KVAL torn")
    back_up(store, objects)

    restore(objects, tmp_path / "new")

    [copied] = (tmp_path / "new").glob("agents/*/ledger.log")
    assert copied.read_bytes() + b"KVAL torn" == ledger.read_bytes()


DAMAGE = [lambda data: data[:-1] + b"!", lambda data: b""]


def blob_of(objects: Objects, begins: bytes) -> str:
    """The name of the object that begins so."""
    (name,) = (name for name in blobs(objects) if objects.get(name).startswith(begins))
    return name


@pytest.mark.parametrize("change", DAMAGE)
def test_a_damaged_object_is_named_and_no_store_is_made(
    store: Store, tmp_path: Path, objects: Objects, change: Callable[[bytes], bytes]
) -> None:
    put(store, Save("alice", (RECORD,), F1, SEGMENTS))
    back_up(store, objects)
    (ledger,) = tmp_path.glob("store/agents/*/ledger.log")
    name = blob_of(objects, ledger.read_bytes())
    objects.put(name, change(objects.get(name)))

    with pytest.raises(BackupFailed, match=f"{name} is damaged"):
        restore(objects, tmp_path / "new")

    assert sorted(path.name for path in tmp_path.glob("new*")) == []


@pytest.mark.parametrize("change", DAMAGE)
def test_damaged_kv_is_left_out_and_what_was_said_is_there(
    store: Store, tmp_path: Path, objects: Objects, change: Callable[[bytes], bytes]
) -> None:
    put(store, Save("alice", (RECORD,), F1, SEGMENTS))
    store.fork("alice", "child")
    put(store, Save("bob", (RECORD,), F1, (example_segment(0, 256, seed=1),)))
    back_up(store, objects)
    segment = next(tmp_path.glob("store/kv/*/alice-*/seg-*"))
    name = blob_of(objects, segment.read_bytes())
    objects.put(name, change(objects.get(name)))

    assert restore(objects, tmp_path / "new") == 3

    again = Store(tmp_path / "new")
    assert list(again.verify()) == []
    assert {a: again.kv_extent(a, F1) for a in ("alice", "child", "bob")} == {
        "alice": 0, "child": 0, "bob": 256
    }  # fmt: skip
    assert again.read_ledger("alice") == (RECORD,)


def test_missing_kv_is_left_out_and_what_was_said_is_there(store: Store, tmp_path: Path) -> None:
    memory = MemoryStore()
    put(store, Save("alice", (RECORD,), F1, SEGMENTS))
    back_up(store, Objects(memory))
    (segment, *_) = tmp_path.glob("store/kv/*/*/seg-*")
    obstore.delete(memory, blob_of(Objects(memory), segment.read_bytes()))

    assert restore(Objects(memory), tmp_path / "new") == 1

    again = Store(tmp_path / "new")
    assert (again.read_ledger("alice"), again.read_kv("alice", F1)) == ((RECORD,), ())
    again.close()


def test_a_missing_object_is_named(store: Store, tmp_path: Path) -> None:
    memory = MemoryStore()
    put(store, Save("alice", (RECORD,), F1, SEGMENTS))
    back_up(store, Objects(memory))
    (ledger,) = tmp_path.glob("store/agents/*/ledger.log")
    name = blob_of(Objects(memory), ledger.read_bytes())
    obstore.delete(memory, name)

    with pytest.raises(BackupFailed, match=name):
        restore(Objects(memory), tmp_path / "new")

    # What is missing is copied by the next backup.
    back_up(store, Objects(memory))
    assert restore(Objects(memory), tmp_path / "new") == 1


@pytest.mark.parametrize("left", [0, 1])
def test_objects_that_a_loss_of_power_cut_off_are_copied_again(
    store: Store, tmp_path: Path, objects: Objects, left: int
) -> None:
    put(store, Save("alice", (RECORD,), F1, SEGMENTS))
    back_up(store, objects)
    for name in blobs(objects):
        objects.put(name, objects.get(name)[:left])

    back_up(store, objects)

    assert restore(objects, tmp_path / "new") == 1
    assert Store(tmp_path / "new").read_kv("alice", F1) == SEGMENTS


@pytest.mark.parametrize(
    "entry",
    [["../x", [], []], ["a", [], [["zz", "d", []]]], ["a", [], [["0" * 16, "d", [["x", "d"]]]]]],
)
def test_a_snapshot_names_no_path_outside(objects: Objects, tmp_path: Path, entry: object) -> None:
    import msgpack  # type: ignore[import-untyped]

    objects.put(AHEAD, msgpack.packb({"version": 1, "agents": [entry]}))

    with pytest.raises(BackupFailed, match="is no snapshot"):
        restore(objects, tmp_path / "new")


def test_a_snapshot_of_a_newer_version_is_refused(objects: Objects, tmp_path: Path) -> None:
    import msgpack

    objects.put(AHEAD, msgpack.packb({"version": 2, "agents": []}))

    with pytest.raises(BackupFailed, match="is of version 2, and this kvactors reads 1"):
        restore(objects, tmp_path / "new")


def test_nothing_is_restored_over_something(store: Store, tmp_path: Path, objects: Objects) -> None:
    with pytest.raises(BackupFailed, match="there is no snapshot"):
        restore(objects, tmp_path / "new")
    put(store, Save("alice", (RECORD,), None, ()))
    back_up(store, objects)
    with pytest.raises(
        BackupFailed, match="there is no snapshot of-yesterday; there are snapshots/"
    ):
        restore(objects, tmp_path / "new", "of-yesterday")

    with pytest.raises(BackupFailed, match="holds something: restore into a new directory"):
        restore(objects, store.root)

    (tmp_path / "empty").mkdir()
    # What a kill left of another restore.
    (tmp_path / "empty.restoring" / "agents").mkdir(parents=True)
    assert restore(objects, tmp_path / "empty") == 1
    shutil.rmtree(tmp_path / "empty")


def test_a_segment_that_left_is_told_and_counts_for_nothing(store: Store, objects: Objects) -> None:
    put(store, Save("alice", (RECORD,), F1, SEGMENTS))
    held = store.files.of(store.agent_folders()[0])
    assert held is not None
    held.kv[0].segments[-1].unlink()
    backup = Backup(objects)

    with pytest.raises(FileNotFoundError):
        backup.add(held)

    told = backup.finish()
    assert (told.agents, told.nbytes) == (0, 0)
