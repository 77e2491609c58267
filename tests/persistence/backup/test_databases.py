"""What a server knows lies in a database beside the agents: a backup has it as of one moment."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from store_saves import backed_up, kv_save, put

from kvactors.persistence import Store
from kvactors.persistence.backup.backup import PIECE
from kvactors.persistence.backup.objects import Objects, open_objects
from kvactors.persistence.backup.restore import restore
from kvactors.persistence.backup.snapshot import Snapshot, blob_name
from kvactors.persistence.errors import BackupFailed
from kvactors.persistence.testing.doubles import example_segment


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return open_objects((tmp_path / "objects").as_uri())


@pytest.fixture
def database(store: Store) -> Iterator[sqlite3.Connection]:
    """Beside alice, of 2.4 MB, as a server that runs has it: what it wrote is still in its log."""
    put(store, kv_save("alice", example_segment(0, 8)))
    with closing(sqlite3.connect(store.root / "clients.db")) as database:
        database.executescript("pragma journal_mode=wal; create table said(number, text);")
        for number in range(600):
            database.execute("insert into said values (?, ?)", (number, f"{number:04}" * 1000))
        database.commit()
        yield database


def said(root: Path) -> list[int]:
    with closing(sqlite3.connect(root / "clients.db")) as database:
        assert database.execute("pragma quick_check").fetchall() == [("ok",)]
        return [number for (number,) in database.execute("select number from said")]


def test_it_is_restored_with_the_agents_as_its_last_commit_left_it(
    store: Store, database: sqlite3.Connection, objects: Objects, tmp_path: Path
) -> None:
    database.execute("insert into said values (?, ?)", (600, "not committed"))

    report = backed_up(store, objects)

    database.commit()
    assert report.skipped == ()
    assert restore(objects, tmp_path / "new") == 1
    assert said(tmp_path / "new") == list(range(600))
    assert (tmp_path / "new/clients.db").stat().st_mode & 0o777 == 0o600


def test_the_next_backup_copies_the_pages_that_changed(
    store: Store, database: sqlite3.Connection, objects: Objects, tmp_path: Path
) -> None:
    first = backed_up(store, objects)
    database.execute("insert into said values (?, ?)", (600, "later"))
    database.commit()

    second = backed_up(store, objects)

    assert first.added > 2 * PIECE
    # The first piece has the page that counts changes, the last one the row.
    assert 0 < second.added <= 2 * PIECE
    assert restore(objects, tmp_path / "new") == 1
    assert said(tmp_path / "new") == list(range(601))


def test_of_one_that_cannot_be_read_the_snapshot_has_what_the_one_before_had(
    store: Store,
    database: sqlite3.Connection,
    objects: Objects,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    backed_up(store, objects)
    database.close()
    (store.root / "clients.db").write_bytes(b"no database" * 1000)

    with caplog.at_level(logging.WARNING):
        (reason,) = backed_up(store, objects).skipped

    assert reason.startswith("clients.db: ")
    assert reason in caplog.text.replace(
        f"{store.root}/clients.db is skipped by a backup", "clients.db"
    )
    assert restore(objects, tmp_path / "new") == 1
    assert said(tmp_path / "new") == list(range(600))


def test_one_that_is_damaged_there_is_refused_or_left_out(
    store: Store, database: sqlite3.Connection, objects: Objects, tmp_path: Path
) -> None:
    name = backed_up(store, objects).name
    ((_, pieces),) = Snapshot.unpack(objects.get(name), name).databases
    objects.put(blob_name(pieces[1][0]), bytes(pieces[1][1]))

    with pytest.raises(BackupFailed, match=r"clients\.db: .* is damaged"):
        restore(objects, tmp_path / "new")
    skipped = list[str]()
    assert restore(objects, tmp_path / "new", skip=skipped.append) == 1

    assert [reason.split(":")[0] for reason in skipped] == ["clients.db"]
    assert not (tmp_path / "new/clients.db").exists()


@pytest.mark.usefixtures("database")
def test_of_a_store_in_parts_the_first_has_it(
    store: Store, objects: Objects, tmp_path: Path
) -> None:
    backed_up(store, objects)

    agents = [restore(objects, tmp_path / f"{n}", part=(n, 2)) for n in (1, 2)]

    assert sum(agents) == 1
    assert [(tmp_path / f"{n}/clients.db").exists() for n in (1, 2)] == [True, False]


@pytest.mark.usefixtures("database")
def test_one_that_is_gone_from_the_store_is_in_no_later_snapshot(
    store: Store, objects: Objects, tmp_path: Path
) -> None:
    backed_up(store, objects)
    for path in store.root.glob("clients.db*"):
        path.unlink()

    backed_up(store, objects)

    assert restore(objects, tmp_path / "new") == 1
    assert not (tmp_path / "new/clients.db").exists()


def test_a_name_that_is_a_path_is_no_database(objects: Objects, tmp_path: Path) -> None:
    name = "snapshots/20260101T000000.000000Z.msgpack"
    objects.put(name, Snapshot((), databases=(("../clients.db", ()),)).pack())

    with pytest.raises(BackupFailed, match="is no database's name"):
        restore(objects, tmp_path / "new")
