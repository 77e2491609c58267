"""Disk errors at every operation of a save."""

from __future__ import annotations

import errno
import threading
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from crash_saves import (
    FIRST,
    SECOND,
    F,
    heal,
    kv_after,
    leftovers,
    operations_of,
    save,
)
from store_saves import Unsynced, put

from kvactors.persistence import Save, Store
from kvactors.persistence.files.naming import TEMP_SUFFIX, encode_agent_id
from kvactors.persistence.testing.doubles import (
    CountingFiles,
    FailingFiles,
    HoldingFiles,
    Outcomes,
    PowerLossFiles,
    example_segment,
)


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
def test_a_disk_error_at_any_operation_spoils_nothing_and_heals(
    tmp_path: Path, code: int, sticky: bool
) -> None:
    count = operations_of(tmp_path / "count")
    for at in range(count):
        root = tmp_path / str(at)
        files = FailingFiles(Unsynced(), at=at, sticky=sticky, code=code)
        files.armed = False
        store = Store(root, files=files)
        first = put(store, *FIRST)
        files.arm()

        second = put(store, *SECOND)

        files.armed = False
        assert all(isinstance(error, OSError) for _, part, error in second.failed if part != "kv")
        assert len(second.durable) + sum(part == "ledger" for _, part, _ in second.failed) == 4
        durable, cached = first.durable + second.durable, first.cached + second.cached
        records = {agent: len(store.read_ledger(agent) or ()) for agent in ("a", "b", "c")}
        assert records["c"] == 1
        assert records["a"] == 1 + (SECOND[0] in second.durable)
        for item in SECOND[:2]:
            if item in second.cached:
                assert store.read_kv(item.agent_id, F)[-1] == item.segments[0]
        if not sticky:
            assert not list(root.rglob("*.tmp"))
        heal(store)
        store.close()
        again = Store(root)
        again.sweep()
        assert not leftovers(root)
        assert len(durable) >= len(cached) >= len(FIRST)
        assert again.read_kv("a", F) == (example_segment(0, 9, seed=9),)
        again.close()


def test_what_a_failing_disk_refused_is_there_once_when_it_is_written_again(
    tmp_path: Path,
) -> None:
    for at in range(operations_of(tmp_path / "count")):
        put(store := Store(tmp_path / str(at), files=Unsynced()), *FIRST)
        store.close()
        # Nothing can be taken back either, and this process has not written these ledgers yet.
        files = FailingFiles(Unsynced(), at=at, sticky=True, code=errno.EIO)
        files.armed = False
        store = Store(tmp_path / str(at), files=files)
        files.arm()
        refused = [item for item, part, _ in put(store, *SECOND).failed if part == "ledger"]
        files.armed = False

        again = put(store, *refused)

        assert again.durable == refused
        store.close()
        store = Store(tmp_path / str(at))
        for agent in ("a", "b", "new"):
            asked = [r for i in (*FIRST, *SECOND) if i.agent_id == agent for r in i.records]
            assert store.read_ledger(agent) == tuple(asked), f"operation {at}"
        store.close()


def test_forgetting_that_fails_at_any_operation_can_be_repeated(tmp_path: Path) -> None:
    for at in range(20):
        disk = PowerLossFiles()
        files = FailingFiles(disk, at=at, sticky=True, code=errno.EIO)
        files.armed = False
        store = Store(tmp_path / str(at), files=files)
        put(store, *FIRST, *SECOND)
        files.arm()

        with suppress(OSError):
            store.forget("a")
        files.armed = False
        store.close()
        disk.lose_power(Random(at))

        again = Store(tmp_path / str(at))
        assert len(again.read_ledger("a") or ()) in (0, 2)
        assert again.read_kv("a", F) in ((), kv_after([FIRST[0], SECOND[0]]))
        again.forget("a")
        assert {agent.agent_id for agent in again.agents()} == {"b", "c", "new"}
        assert not leftovers(tmp_path / str(at))
        again.close()
    assert at > files.met, "every operation was met"


def test_a_disk_error_fails_its_save_alone(tmp_path: Path) -> None:
    files = FailingFiles(name="link", path="*/b-*/seg-*")
    store = Store(tmp_path, files=files)

    outcomes = put(store, *FIRST)

    assert [(item.agent_id, part) for item, part, _ in outcomes.failed] == [("b", "kv")]
    assert [item.agent_id for item in outcomes.durable] == ["a", "b", "c"]
    assert [item.agent_id for item in outcomes.cached] == ["a", "c"]
    assert isinstance(outcomes.failed[0][2], OSError)
    assert outcomes.failed[0][2].errno == errno.ENOSPC
    assert not leftovers(tmp_path)
    store.close()


def test_a_flush_that_fails_fails_all_that_passed_its_step_and_takes_them_back(
    tmp_path: Path,
) -> None:
    counted = CountingFiles()
    put(store := Store(tmp_path / "count", files=counted), *FIRST)
    store.close()
    flushes = [item.index for item in counted.operations if item.name == "flush"]

    for at, part in zip(flushes, ["ledger"] * 2 + ["kv"] * 4, strict=True):
        files = FailingFiles(PowerLossFiles(), at=at)
        store = Store(tmp_path / str(at), files=files)

        outcomes = put(store, *FIRST)

        assert sorted((item.agent_id, found) for item, found, _ in outcomes.failed) == [
            (item.agent_id, part) for item in FIRST
        ]
        assert outcomes.durable == ([] if part == "ledger" else list(FIRST))
        assert not outcomes.cached
        assert not leftovers(tmp_path / str(at))
        heal(store)
        store.close()


def test_of_a_save_whose_folder_was_not_flushed_it_is_synced_again(tmp_path: Path) -> None:
    put(store := Store(tmp_path), FIRST[0])
    store.close()
    noted = CountingFiles()
    files = FailingFiles(noted, name="flush", path="*/kv")
    store = Store(tmp_path, files=files)
    assert put(store, SECOND[0]).failed
    files.armed = False
    noted.operations.clear()

    assert not put(store, Save("a", (), F, SECOND[0].segments)).failed

    assert any(item.matches("fsync", "*/kv") for item in noted.operations)
    store.close()


def test_a_step_is_flushed_when_its_last_save_failed_and_is_gone(tmp_path: Path) -> None:
    disk = PowerLossFiles()
    files = FailingFiles(disk, name="fsync", path="*/b-*/seg-4-*")
    store = Store(tmp_path, files=files)
    two = Save("b", ({},), F, (example_segment(0, 4), example_segment(4, 8)))

    outcomes = put(store, FIRST[0], two)

    assert [item.agent_id for item, *_ in outcomes.failed] == ["b"]
    assert outcomes.cached == [FIRST[0]]
    store.close()
    disk.lose_power()
    again = Store(tmp_path)
    assert again.read_kv("a", F) == FIRST[0].segments
    again.close()


def test_without_its_ledger_part_a_saves_kv_part_is_not_tried(tmp_path: Path) -> None:
    files = FailingFiles(name="fsync", path="*/a-*/ledger*")
    store = Store(tmp_path, files=files)

    outcomes = put(store, save("a", 1, 0, 4))

    assert [part for _, part, _ in outcomes.failed] == ["ledger"]
    assert outcomes.durable == outcomes.cached == []
    assert store.read_ledger("a") is None
    assert store.kv_extent("a", F) == 0
    store.close()


def test_an_append_that_failed_is_not_there_after_a_restart(tmp_path: Path) -> None:
    files = FailingFiles(name="*sync", path="*/a-*/ledger.log")
    files.armed = False
    put(store := Store(tmp_path, files=files), *FIRST)
    files.armed = True
    outcomes = put(store, SECOND[0])
    store.close()

    again = Store(tmp_path)

    assert [part for _, part, _ in outcomes.failed] == ["ledger"]
    assert again.read_ledger("a") == FIRST[0].records
    again.close()


def test_a_store_opens_on_a_full_disk(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, *FIRST)
    store.close()

    again = Store(tmp_path, files=FailingFiles(name="write_temp"))

    assert again.kv_extent("a", F) == 4
    again.close()


def test_a_save_that_is_held_back_says_when_it_is_reached(tmp_path: Path) -> None:
    files = HoldingFiles(name="fsync", path="*/seg-*")
    store = Store(tmp_path, files=files)
    outcomes = Outcomes()
    thread = threading.Thread(target=outcomes.commit, args=(store, save("a", 1, 0, 4)))
    thread.start()

    assert files.reached.wait(10)
    assert len(outcomes.durable) == 1
    assert outcomes.cached == []

    files.release.set()
    thread.join(10)
    assert len(outcomes.cached) == 1
    store.close()


@pytest.mark.parametrize("kv", [True, False], ids=["kv names it", "it is confirmed"])
def test_what_a_killed_process_left_unsynced_is_synced_before_it_is_built_upon(
    tmp_path: Path, kv: bool
) -> None:
    disk, turns = PowerLossFiles(), (save("a", 1, 0, 4), save("a", 2, 4, 6))
    for name, saves in (("both", turns), ("killed", turns[:1])):
        put(store := Store(tmp_path / name, files=disk), *saves)
        store.close()
    both, killed = (next((tmp_path / n).rglob("ledger.log")) for n in ("both", "killed"))
    disk.append(killed, both.read_bytes()[killed.stat().st_size :])

    again = Store(tmp_path / "killed", files=disk)
    outcomes = put(again, Save("a", (), F, turns[1].segments) if kv else Save("a", (), None, ()))
    again.close()
    disk.lose_power()

    assert len(outcomes.durable) == 1
    after = Store(tmp_path / "killed")
    assert after.read_ledger("a") == (*turns[0].records, *turns[1].records)
    after.close()


def test_what_a_crash_left_of_a_forgotten_agent_is_swept_when_it_comes_again(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    folder = tmp_path / "agents" / encode_agent_id("a")
    store.forget("a")
    folder.mkdir()
    (folder / f"ledger.log{TEMP_SUFFIX}").touch()

    assert not store.has("a")
    assert not folder.exists()
    store.close()
