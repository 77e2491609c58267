"""Archives: a whole agent in one file, and nothing stored of a file that is not one."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from store_saves import F1, RECORD, put

from kvactors.persistence import Save, Store
from kvactors.persistence.errors import (
    AgentExists,
    AgentNotStored,
    ExportRejected,
    ImportRejected,
)
from kvactors.persistence.formats.archive import export_archive, import_archive, is_archive
from kvactors.persistence.ledger.frames import encode_header, encode_records
from kvactors.persistence.testing.doubles import CountingFiles, FailingFiles, example_segment

F2 = "1" * 16
MORE = {"text": "and more \ud800"}


@pytest.fixture
def path(store: Store, tmp_path: Path) -> Path:
    """An archive of alice, who has two saves and KV under two models."""
    first = (example_segment(0, 256), example_segment(256, 300))
    second = (example_segment(0, 20, seed=7),)
    outcomes = put(store, Save("alice", (RECORD,), F1, first), Save("alice", (MORE,), F2, second))
    assert not outcomes.failed
    export_archive(store, "alice", tmp_path / "alice.kva")
    return tmp_path / "alice.kva"


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return Store(tmp_path / "other")


def same(store: Store, agent_id: str, other: Store, other_id: str) -> bool:
    """Whether two stores remember the same of two agents."""
    return (
        store.read_ledger(agent_id) == other.read_ledger(other_id)
        and store.fingerprints(agent_id) == other.fingerprints(other_id)
        and all(
            store.read_kv(agent_id, name) == other.read_kv(other_id, name)
            for name in store.fingerprints(agent_id)
        )
    )


def test_an_agent_moves_with_all_it_has(store: Store, path: Path, other: Store) -> None:
    import_archive(other, path, "../bob\n")

    assert is_archive(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert other.fingerprints("../bob\n") == [F1, F2]
    assert same(store, "alice", other, "../bob\n")
    other.close()
    again = Store(other.root)
    assert same(store, "alice", again, "../bob\n")
    assert not put(again, Save("../bob\n", (RECORD,), F1, (example_segment(300, 310),))).failed


def test_an_agent_without_kv_moves_too(store: Store, tmp_path: Path, other: Store) -> None:
    put(store, Save("cold", (RECORD,), None, ()))

    export_archive(store, "cold", tmp_path / "cold.kva")
    import_archive(other, tmp_path / "cold.kva", "cold")

    assert same(store, "cold", other, "cold")


def test_the_same_agent_is_the_same_file(store: Store, path: Path, tmp_path: Path) -> None:
    export_archive(store, "alice", tmp_path / "again.kva")

    assert path.read_bytes() == (tmp_path / "again.kva").read_bytes()


def test_progress_ends_with_all_steps(store: Store, tmp_path: Path, path: Path) -> None:
    seen: list[tuple[int, int]] = []

    import_archive(store, path, "bob", lambda done, steps: seen.append((done, steps)))

    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_nothing_is_written_over(store: Store, path: Path) -> None:
    before = store.read_ledger("alice")

    with pytest.raises(AgentExists, match="alice"):
        import_archive(store, path, "alice")
    with pytest.raises(ExportRejected, match="exists"):
        export_archive(store, "alice", path)
    with pytest.raises(AgentNotStored, match="no agent 'nobody' to export"):
        export_archive(store, "nobody", path.with_name("nobody.kva"))

    assert store.read_ledger("alice") == before
    assert not path.with_name("nobody.kva").exists()


def test_every_flipped_bit_ends_in_the_same_agent_or_a_refusal(
    store: Store, path: Path, other: Store
) -> None:
    good, random, refused = path.read_bytes(), Random(0), 0
    for number in range(300):
        data = bytearray(good)
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        path.write_bytes(data)
        try:
            import_archive(other, path, f"a{number}")
        except ImportRejected:
            refused += 1
            assert other.read_ledger(f"a{number}") is None
        else:
            assert same(store, "alice", other, f"a{number}")
    assert refused > 250


def misname(data: bytearray, directory: int) -> None:
    """The name of a member is said to be UTF-8, and is not."""
    data[directory + 9] |= 8
    data[directory + 46] = 0xFF


def misplace(data: bytearray, directory: int) -> None:
    """The directory is said to begin a byte later: so members begin a byte before the file."""
    data[-6:-2] = (directory + 1).to_bytes(4, "little")


@pytest.mark.parametrize("change", [misname, misplace])
def test_a_directory_of_members_that_cannot_be_is_refused(
    path: Path, other: Store, change: Callable[[bytearray, int], None]
) -> None:
    data = bytearray(path.read_bytes())
    change(data, data.index(b"PK\x01\x02"))
    path.write_bytes(data)

    with pytest.raises(ImportRejected):
        import_archive(other, path, "bob")

    assert other.agents() == []


def test_every_truncation_is_refused(path: Path, other: Store) -> None:
    good = path.read_bytes()
    for size in range(0, len(good), 509):
        path.write_bytes(good[:size])

        with pytest.raises(ImportRejected):
            import_archive(other, path, "bob")
    assert other.agents() == []


Members = dict[str, bytes]


def rewrite(path: Path, change: Callable[[Members], None], method: int = 0) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def newer(members: Members) -> None:
    members["archive.json"] = json.dumps({"format": "kvactors-archive", "version": 2}).encode()


def foreign(members: Members) -> None:
    del members["archive.json"]


def climbing(members: Members) -> None:
    members["../../agents/x/ledger.log"] = members["ledger.log"]


def of_another_ledger(members: Members) -> None:
    members["ledger.log"] = encode_header("alice", None) + encode_records([MORE], 1, "alice", None)


def without_its_last_frame(members: Members) -> None:
    members["ledger.log"] = members["ledger.log"][:-3]


def without_a_segment(members: Members) -> None:
    del members[next(name for name in members if "seg-0-256" in name)]


def under_another_model(members: Members) -> None:
    for name in [name for name in members if F2 in name]:
        members[name.replace(F2, "2" * 16)] = members.pop(name)


def with_swapped_segments(members: Members) -> None:
    first, second = (n for n in members if F1 in n and "seg-" in n)
    members[first], members[second] = members[second], members[first]


@pytest.mark.parametrize(
    "change",
    [
        newer,
        foreign,
        climbing,
        of_another_ledger,
        without_its_last_frame,
        without_a_segment,
        under_another_model,
        with_swapped_segments,
    ],
)
def test_an_archive_put_together_wrongly_is_refused(
    path: Path, other: Store, change: Callable[[Members], None]
) -> None:
    rewrite(path, change)

    with pytest.raises(ImportRejected):
        import_archive(other, path, "bob")

    assert other.agents() == []


def test_members_that_would_grow_when_unpacked_are_refused(path: Path, other: Store) -> None:
    rewrite(path, lambda members: None, zipfile.ZIP_DEFLATED)

    with pytest.raises(ImportRejected, match="stored as they are"):
        import_archive(other, path, "bob")


def test_a_member_that_stands_twice_is_refused(path: Path, other: Store) -> None:
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("ledger.log", b"")

    with pytest.raises(ImportRejected, match="it is there twice"):
        import_archive(other, path, "bob")


def test_a_plain_zip_file_is_refused(path: Path, other: Store) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("holiday.jpg", b"")
    path.write_bytes(buffer.getvalue())

    with pytest.raises(ImportRejected, match="a zip file, and no archive of kvactors"):
        import_archive(other, path, "bob")


def test_an_import_that_the_disk_fails_leaves_nothing_behind(path: Path, tmp_path: Path) -> None:
    opening = CountingFiles()
    Store(tmp_path / "counted", files=opening).close()
    failures = 0
    while True:
        files = FailingFiles(at=len(opening.operations) + failures)
        store = Store(tmp_path / f"store-{failures}", files=files)
        error = None
        try:
            import_archive(store, path, "bob")
        except OSError as caught:
            error = caught
        if not files.failed:
            break
        assert (store.read_ledger("bob") is None) == (error is not None)
        assert (store.fingerprints("bob") == []) == (error is not None)
        failures += 1
        store.close()
    store.close()

    assert failures > 20
