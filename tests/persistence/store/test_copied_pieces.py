"""KV that is copied from store to store, piece by piece."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from copies import KEY, OTHER, RECORDS, copy_all, copy_kv, filled, opened, part
from store_saves import F1, put

from kvactors.persistence import Save, Store
from kvactors.persistence.testing.doubles import (
    FailingFiles,
    PowerLossFiles,
    example_segment,
)


def test_pieces_are_copied_one_behind_another_and_none_twice(
    tmp_path: Path, key: bytes | None
) -> None:
    source, target = filled(tmp_path / "a", key), opened(tmp_path / "b", key)
    target.records.append("alice", 0, source.records.read("alice"))
    names = source.pieces.names("alice")

    pieces = [source.pieces.read("alice", names[:n], most=1) for n in range(4)]
    copy_kv(source, target)
    put(source, Save("alice", ({"n": 5},), F1, (part(3),)))
    more = source.pieces.read("alice", target.pieces.names("alice"))

    assert [len(piece["segments"]) for piece in pieces[:3] if piece] == [1, 1, 1]
    assert pieces[3] is None
    assert target.pieces.names("alice") == names
    assert more is not None
    assert source.pieces.names_of(more) == source.pieces.names("alice")[3:]


def test_a_piece_has_several_small_segments(tmp_path: Path) -> None:
    source, target = filled(tmp_path / "a"), opened(tmp_path / "b")
    piece = source.pieces.read("alice", ())
    assert piece is not None

    assert target.pieces.add("alice", piece)

    assert target.read_kv("alice", F1) == source.read_kv("alice", F1)
    assert len(piece["segments"]) == 3


def test_what_was_merged_or_rewound_in_between_is_replaced(
    tmp_path: Path, key: bytes | None
) -> None:
    source, target = filled(tmp_path / "a", key), opened(tmp_path / "b", key)
    copy_all(source, target)
    put(source, Save("alice", ({"n": 5},), F1, (example_segment(4, 16, seed=2),)))

    copy_all(source, target)
    copy_all(source, target)

    assert target.read_kv("alice", F1) == source.read_kv("alice", F1)
    assert target.kv_extent("alice", F1) == 16


def test_a_piece_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    source, target = filled(tmp_path / "a"), opened(tmp_path / "b")
    copy_all(source, target)
    first = source.pieces.read("alice", source.pieces.names("alice")[1:])
    assert first is not None

    assert target.pieces.add("alice", first)

    assert target.kv_extent("alice", F1) == 12


def test_kv_that_does_not_follow_or_has_no_room_is_left_out(
    tmp_path: Path, key: bytes | None
) -> None:
    source, empty = filled(tmp_path / "a", key), opened(tmp_path / "b", key)
    full = opened(tmp_path / "c", key, max_disk=10)
    later = source.pieces.read("alice", source.pieces.names("alice")[:1])
    whole = source.pieces.read("alice", ())
    assert later is not None
    assert whole is not None

    assert not empty.pieces.add("alice", later)
    assert not full.pieces.add("alice", whole)

    assert empty.pieces.names("alice") == full.pieces.names("alice") == []


@pytest.mark.parametrize("wrong", ["flip", "cut", "name", "range", "version", "form", "model"])
def test_a_piece_that_is_not_what_its_names_say_is_not_stored(
    tmp_path: Path, key: bytes | None, wrong: str
) -> None:
    source, target = filled(tmp_path / "a", key), opened(tmp_path / "b", key)
    piece: Any = source.pieces.read("alice", ())
    name, data = piece["segments"][0]
    head, middle = name[:4], name[4:]
    changed: Any = {
        "flip": {"segments": [[name, data[:-1] + bytes([data[-1] ^ 1])]]},
        "cut": {"segments": [[name, data[:-1]]]},
        "name": {"segments": [["../../" + name, data]]},
        "range": {"segments": [[head + middle.replace("0-4-", "0-8-"), data]]},
        "version": {"version": 2},
        "form": {"segments": [name]},
        "model": {"fingerprint": "../.."},
    }[wrong]

    assert not target.pieces.add("alice", {**piece, **changed})

    assert target.pieces.names("alice") == []
    assert not list((tmp_path / "b" / "kv").rglob("seg-*"))
    assert target.pieces.add("alice", piece)


def test_sealed_kv_is_stored_where_the_key_is_the_same_alone(tmp_path: Path) -> None:
    piece = filled(tmp_path / "a", KEY).pieces.read("alice", ())
    plain = filled(tmp_path / "b").pieces.read("alice", ())
    assert piece is not None
    assert plain is not None

    assert not opened(tmp_path / "c").pieces.add("alice", piece)
    assert not opened(tmp_path / "d", OTHER).pieces.add("alice", piece)
    assert not opened(tmp_path / "e", KEY).pieces.add("alice", plain)
    assert opened(tmp_path / "f", KEY).pieces.add("alice", piece)


def test_a_segment_that_is_gone_ends_what_is_copied(tmp_path: Path) -> None:
    source, target = filled(tmp_path / "a"), opened(tmp_path / "b")
    second = source.pieces.names("alice")[1].rpartition("/")[2]
    next((tmp_path / "a").rglob(second)).unlink()

    copy_all(source, target)

    assert target.kv_extent("alice", F1) == 4


def test_copies_that_a_disk_refuses_or_power_loss_cuts_off_leave_what_was_there(
    tmp_path: Path,
) -> None:
    source = filled(tmp_path / "source")
    for at in range(60):
        root, disk = tmp_path / str(at), PowerLossFiles()
        files = FailingFiles(disk, at=at, sticky=True)
        files.armed = False
        store = Store(root, files=files)
        store.records.append("alice", 0, source.records.read("alice")[:2])
        files.arm()

        with suppress(OSError):
            copy_all(source, store)
        files.armed = False
        failed = bool(files.failed)
        store.close()
        disk.lose_power(Random(at))

        again = opened(root)
        kept = again.read_ledger("alice") or ()
        assert kept in (RECORDS[:2], RECORDS), f"operation {at}"
        assert failed or kept == RECORDS
        assert (
            again.read_kv("alice", F1)
            == source.read_kv("alice", F1)[: again.kv_extent("alice", F1) // 4]
        )
        copy_all(source, again)
        assert again.read_kv("alice", F1) == source.read_kv("alice", F1)
        again.close()
        if not failed:
            return
    pytest.fail("the copy has more than 60 operations")
