"""Ledgers that are copied from store to store, record by record, and what is set aside."""

from __future__ import annotations

from contextlib import closing, suppress
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from copies import KEY, OTHER, RECORDS, copy_all, filled, opened, part
from store_saves import F1, RECORD, put

from kvactors.persistence import Save, Store
from kvactors.persistence.errors import (
    ImportRejected,
    LedgerUnreadable,
    RecordGap,
    RecordsPart,
)
from kvactors.persistence.files.encryption import Sealing
from kvactors.persistence.files.naming import encode_agent_id
from kvactors.persistence.files.packing import pack
from kvactors.persistence.testing.doubles import (
    FailingFiles,
    PowerLossFiles,
)

# -- records -------------------------------------------------------------------------------


def test_a_copied_agent_is_whole_and_stays_so_when_the_store_is_opened_again(
    tmp_path: Path, key: bytes | None
) -> None:
    source, target = filled(tmp_path / "a", key), opened(tmp_path / "b", key)
    put(target, Save("bob", ({"n": 1},), F1, (part(0, seed=7),)))

    copy_all(source, target)
    target.close()
    again = opened(tmp_path / "b", key)

    assert again.read_ledger("alice") == source.read_ledger("alice") == RECORDS
    assert again.read_kv("alice", F1) == source.read_kv("alice", F1)
    assert again.records.counts() == {"alice": 5, "bob": 1}
    assert not list(again.verify())
    put(again, Save("alice", ({"n": 5},), F1, (part(3),)))
    assert again.kv_extent("alice", F1) == 16


def test_records_are_appended_once_however_often_they_come(
    tmp_path: Path, key: bytes | None
) -> None:
    source, target = filled(tmp_path / "a", key), opened(tmp_path / "b", key)
    copies = source.records.read("alice")

    counts = [
        target.records.append("alice", start, copies[start:end])
        for start, end in ((0, 2), (0, 2), (1, 4), (3, 5), (5, 5), (0, 5))
    ]

    assert counts == [2, 2, 4, 5, 5, 5]
    assert target.read_ledger("alice") == RECORDS
    assert target.records.read("alice", 3) == copies[3:] == source.records.read("alice", 3)
    assert source.records.read("alice", 9) == source.records.read("nobody") == []


def test_a_gap_is_refused_and_says_how_many_there_are(tmp_path: Path) -> None:
    source, target = filled(tmp_path / "a"), opened(tmp_path / "b")
    copies = source.records.read("alice")

    with pytest.raises(RecordGap) as empty:
        target.records.append("alice", 1, copies[1:])
    target.records.append("alice", 0, copies[:2])
    with pytest.raises(RecordGap) as later:
        target.records.append("alice", 3, copies[3:])

    assert (empty.value.have, later.value.have) == (0, 2)
    assert target.read_ledger("alice") == RECORDS[:2]


def test_a_ledger_that_says_something_else_is_not_written_over(
    tmp_path: Path, key: bytes | None
) -> None:
    source, target = filled(tmp_path / "a", key), opened(tmp_path / "b", key)
    target.records.append("alice", 0, source.records.read("alice")[:2])
    put(target, Save("alice", ({"n": "its own"},), None, ()))

    with pytest.raises(RecordsPart) as parted:
        target.records.append("alice", 1, source.records.read("alice", 1))

    assert parted.value.place == 2
    assert len(target.read_ledger("alice") or ()) == 3


def test_what_is_sealed_opens_for_its_agent_its_place_and_its_key_alone(tmp_path: Path) -> None:
    source = filled(tmp_path / "a", KEY)
    first, second, *_ = source.records.read("alice")
    plain, sealed = opened(tmp_path / "plain"), opened(tmp_path / "sealed", KEY)
    foreign = opened(tmp_path / "foreign", OTHER)

    assert RECORD["text"].encode() not in first
    for store, agent, copies in (
        (plain, "alice", [first]),
        (foreign, "alice", [first]),
        (sealed, "bob", [first]),
        (sealed, "alice", [second]),
        (sealed, "alice", [first, first]),
        (sealed, "alice", [first[:-1]]),
        (sealed, "alice", [b""]),
    ):
        with pytest.raises(ImportRejected):
            store.records.append(agent, 0, copies)
        assert not store.has(agent)
    with pytest.raises(ImportRejected):
        sealed.records.append("alice", 0, filled(tmp_path / "b").records.read("alice"))


def test_an_agent_whose_ledger_cannot_be_read_is_not_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(tmp_path)
    put(store, Save("bob", ({"n": 1},), None, ()))
    store.close()
    path = tmp_path / "agents" / encode_agent_id("alice") / "ledger.log"
    path.write_bytes(path.read_bytes()[:60])

    found = opened(tmp_path).records.counts()

    assert found == {"bob": 1}
    assert "alice" in caplog.text


# -- set aside -----------------------------------------------------------------------------


def looked_at(aside: Path, root: Path, key: bytes | None = None) -> Any:
    """What a person finds in a folder that was set `aside`, who looks at it as the page says: in an
    empty folder `root`, as a store with this `key`."""
    place = root / "agents" / encode_agent_id("alice")
    place.mkdir(parents=True)
    (place / "ledger.log").write_bytes((aside / "ledger.log").read_bytes())
    with closing(opened(root, key)) as store:
        return store.read_ledger("alice")


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_records_that_are_set_aside_can_be_found_and_the_ledger_goes_on_without_them(
    tmp_path: Path, key: bytes | None, keep: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(tmp_path / "a", key)
    put(store, Save("bob", ({"n": 1},), F1, (part(0, seed=7),)))

    folder = store.records.set_aside("alice", keep)

    assert folder is not None
    assert str(folder) in caplog.text
    assert store.read_kv("alice", F1) == ()
    assert len(store.read_ledger("alice") or ()) == keep
    put(store, Save("alice", ({"n": "new"},), F1, (part(0),)))
    store.forget("bob")
    store.close()
    again = opened(tmp_path / "a", key)
    assert again.read_ledger("alice") == (*RECORDS[:keep], {"n": "new"})
    assert again.kv_extent("alice", F1) == 4
    assert looked_at(folder, tmp_path / "look", key) == RECORDS


def test_what_was_set_aside_outlives_its_agent_and_what_is_set_aside_later(tmp_path: Path) -> None:
    store = filled(tmp_path)
    first = store.records.set_aside("alice", 4)
    second = store.records.set_aside("alice", 2)
    nothing = store.records.set_aside("alice", 2), store.records.set_aside("nobody", 0)

    store.forget("alice")

    assert nothing == (None, None)
    assert first is not None
    assert second is not None
    assert [folder.name for folder in (first, second)] == ["1", "2"]
    assert looked_at(first, tmp_path / "look 1") == RECORDS
    assert looked_at(second, tmp_path / "look 2") == RECORDS[:4]


def test_setting_aside_that_fails_or_is_cut_off_anywhere_loses_no_record(tmp_path: Path) -> None:
    for at, goes_on in product(range(100), (False, True)):
        root, disk = tmp_path / f"{at} {goes_on}", PowerLossFiles()
        files = FailingFiles(disk, at=at, sticky=True)
        files.armed = False
        store = Store(root, files=files)
        for n, record in enumerate(RECORDS):
            put(store, Save("alice", (record,), F1, (part(n),)))
        files.arm()

        with suppress(OSError):
            store.records.set_aside("alice", 2)
        files.armed = False
        if not files.failed:
            assert at > 20
            return
        if goes_on:
            put(store, Save("alice", ({"n": 9},), None, ()))
        store.close()
        disk.lose_power(Random(at))

        again = opened(root)
        kept = again.read_ledger("alice") or ()
        if kept[:5] != RECORDS:
            assert kept[:2] == RECORDS[:2], f"operation {at}"
            [aside] = root.glob("aside/*/*")
            assert looked_at(aside, root / "look") == RECORDS, f"operation {at}"
        assert kept[-1] == {"n": 9} or not goes_on, f"operation {at}"
        assert len(again.read_kv("alice", F1)) in (0, 5)
        again.records.set_aside("alice", 2)
        assert again.read_ledger("alice") == RECORDS[:2]
        again.close()
    pytest.fail("it has more than 100 operations")


def test_records_are_read_from_anywhere_whatever_happened_to_the_ledger_before(
    tmp_path: Path, key: bytes | None
) -> None:
    random, number = Random(7), 0
    store, known = opened(tmp_path, key), list[dict[str, int]]()
    for _ in range(600):
        match random.choice(["append"] * 4 + ["read"] * 4 + ["aside", "forget", "open"]):
            case "append":
                records = [{"n": number + n} for n in range(random.randint(1, 3))]
                put(store, Save("alice", tuple(records), None, ()))
                known, number = known + records, number + 3
            case "aside":
                keep = random.randint(0, len(known))
                store.records.set_aside("alice", keep)
                known = known[:keep]
            case "forget":
                store.forget("alice")
                known = []
            case "open":
                store.close()
                store = opened(tmp_path, key)
            case _:
                start = random.choice([0, len(known) // 2, max(0, len(known) - 1), len(known)])
                copies = store.records.read("alice", start)
                assert store.records.append("alice", start, copies) == len(known)
                assert len(copies) == len(known) - start
                assert key is not None or copies == [pack(record) for record in known[start:]]
    assert store.read_ledger("alice") in (tuple(known), None)


def test_what_was_damaged_since_it_was_read_is_not_copied(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.records.read("alice")
    put(store, Save("alice", ({"n": 5},), None, ()))
    path = next(tmp_path.rglob("ledger.log"))
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    with pytest.raises(LedgerUnreadable, match="frame 4"):
        store.records.read("alice", 5)


def test_a_ledger_that_is_damaged_is_neither_copied_nor_appended_to(tmp_path: Path) -> None:
    source = filled(tmp_path / "a")
    store = filled(tmp_path / "b")
    store.close()
    path = next((tmp_path / "b").rglob("ledger.log"))
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    store = opened(tmp_path / "b")

    for act in (
        lambda: store.records.read("alice"),
        lambda: store.records.append("alice", 0, source.records.read("alice")),
        lambda: store.records.set_aside("alice", 1),
    ):
        with pytest.raises(LedgerUnreadable):
            act()
    assert path.read_bytes() == bytes(data)


def test_what_is_sealed_the_same_shows_no_more_than_that_it_is_the_same() -> None:
    sealing, other = Sealing(b"k" * 32), Sealing(b"o" * 32)
    sealed = sealing.seal_same(b"a place", b"content" * 9)

    others = (
        sealing.seal_same(b"another", b"content" * 9),
        sealing.seal_same(b"a plac", b"econtent" + b"content" * 8),
        sealing.seal_same(b"a place", b"content" * 8),
        other.seal_same(b"a place", b"content" * 9),
    )

    assert sealed == sealing.seal_same(b"a place", b"content" * 9)
    assert sealing.open_bytes(b"a place", sealed) == b"content" * 9
    # Behind magic, version and key: salts, which keys are made of, and what those sealed.
    assert len({found[13:29] for found in (sealed, *others)}) == 5
    assert not any(found[29:60] == sealed[29:60] for found in others)
