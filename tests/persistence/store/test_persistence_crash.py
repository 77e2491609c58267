"""Disk errors, SIGKILL and power loss at every operation of a save."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from kvactors.persistence import Save, Segment, Store, StoreNotWritable
from kvactors.persistence.kv.manifest import read_manifest
from kvactors.persistence.testing.doubles import (
    CountingFiles,
    FailingFiles,
    HoldingFiles,
    Outcomes,
    PowerLossFiles,
    example_segment,
)

F = "ef" * 16
FULL = bool(os.environ.get("KVACTORS_FULL"))


def save(agent: str, turn: int, start: int, end: int) -> Save:
    return Save(agent, ({"turn": turn},), F, (example_segment(start, end, seed=turn),))


# A new agent, one that continues, one that supersedes, and two saves of one agent.
FIRST = (save("a", 1, 0, 4), save("b", 1, 0, 4), save("c", 1, 0, 4))
SECOND = (save("a", 2, 4, 6), save("b", 2, 0, 6), save("new", 1, 0, 3), save("new", 2, 3, 5))


def put(store: Store, *saves: Save) -> Outcomes:
    outcomes = Outcomes()
    outcomes.commit(store, *saves)
    return outcomes


def expect(states: dict[str, list[Save]], saves: list[Save]) -> None:
    for item in saves:
        states.setdefault(item.agent_id, []).append(item)


def kv_after(saves: list[Save]) -> tuple[Segment, ...]:
    kept: list[Segment] = []
    for item in saves:
        first = item.segments[0].start
        kept = [segment for segment in kept if segment.start < first] + list(item.segments)
    return tuple(kept)


def leftovers(root: Path) -> list[Path]:
    """Temporary files, empty folders, and segments beyond what the manifests name."""
    found = [path for path in root.rglob("*") if path.name.endswith((".tmp", ".bad"))]
    for path in root.rglob("seg-*"):
        manifest = read_manifest(path.with_name("manifest.msgpack"))
        if manifest is None or path.name not in {entry.file for entry in manifest.segments}:
            found.append(path)
    return found + [
        path for path in root.rglob("*")
        if path.is_dir() and path.parent != root and not any(path.iterdir())
    ]  # fmt: skip


def operations_of(folder: Path) -> int:
    """How many operations the SECOND commit takes."""
    files = CountingFiles()
    store = Store(folder, files=files)
    put(store, *FIRST)
    before = len(files.operations)
    put(store, *SECOND)
    store.close()
    return len(files.operations) - before


def check(store: Store, durable: list[Save], cached: list[Save]) -> None:
    """All that was reported is there, and what is there was asked for."""
    for agent in {item.agent_id for item in (*FIRST, *SECOND)}:
        records = store.read_ledger(agent) or ()
        asked = [item for item in (*FIRST, *SECOND) if item.agent_id == agent]
        promised = [item for item in durable if item.agent_id == agent]
        assert len(records) >= len(promised)
        assert records == tuple(item.records[0] for item in asked[: len(records)])
        warm = [item for item in cached if item.agent_id == agent]
        states = [kv_after(asked[:n]) for n in range(len(warm), len(records) + 1)]
        assert store.read_kv(agent, F) in states


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
def test_a_disk_error_at_any_operation_spoils_nothing_and_heals(
    tmp_path: Path, code: int, sticky: bool
) -> None:
    count = operations_of(tmp_path / "count")
    for at in range(0, count, 1 if FULL or (code == errno.ENOSPC and not sticky) else 5):
        root = tmp_path / str(at)
        files = FailingFiles(at=at, sticky=sticky, code=code)
        files.armed = False
        store = Store(root, files=files)
        first = put(store, *FIRST)
        files._index, files.armed = 0, True

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
        put(store := Store(tmp_path / str(at)), *FIRST)
        store.close()
        # Nothing can be taken back either, and this process has not written these ledgers yet.
        files = FailingFiles(at=at, sticky=True, code=errno.EIO)
        files.armed = False
        store = Store(tmp_path / str(at), files=files)
        files._index, files.armed = 0, True
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


def heal(store: Store) -> None:
    """With room again, every agent can be saved."""
    later = tuple(save(agent, 9, 0, 9) for agent in ("a", "b", "c", "new"))
    outcomes = put(store, *later)
    assert not outcomes.failed
    assert len(outcomes.cached) == 4
    for item in later:
        assert (store.read_ledger(item.agent_id) or ())[-1] == item.records[0]
        assert store.read_kv(item.agent_id, F) == item.segments


def test_forgetting_that_fails_at_any_operation_can_be_repeated(tmp_path: Path) -> None:
    for at in range(20):
        disk = PowerLossFiles()
        files = FailingFiles(disk, at=at, sticky=True, code=errno.EIO)
        files.armed = False
        store = Store(tmp_path / str(at), files=files)
        put(store, *FIRST, *SECOND)
        files._index, files.armed = 0, True

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
    assert at > files._index, "every operation was met"


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


def test_without_its_ledger_part_a_saves_kv_part_is_not_tried(tmp_path: Path) -> None:
    files = FailingFiles(name="sync", path="*/a-*/ledger*")
    store = Store(tmp_path, files=files)

    outcomes = put(store, save("a", 1, 0, 4))

    assert [part for _, part, _ in outcomes.failed] == ["ledger"]
    assert outcomes.durable == outcomes.cached == []
    assert store.read_ledger("a") is None
    assert store.kv_extent("a", F) == 0
    store.close()


def test_a_store_opens_on_a_full_disk(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, *FIRST)
    store.close()

    again = Store(tmp_path, files=FailingFiles(name="write_temp"))

    assert again.kv_extent("a", F) == 4
    again.close()


CHILD = """
    import sys
    sys.path[:0] = sys.argv[3:]
    from test_persistence_crash import FIRST, SECOND
    from kvactors.persistence import Store
    from kvactors.persistence.testing.doubles import KillAt
    store = Store(sys.argv[1], files=KillAt(int(sys.argv[2])))
    for group in (FIRST, SECOND):
        store.commit(
            group,
            durable=lambda save: print("durable", save.agent_id, flush=True),
            cached=lambda save: print("cached", save.agent_id, flush=True),
            failed=lambda *args: print("failed", args, flush=True),
        )
    store.close()
    print("end", flush=True)
"""


def run_killed(root: Path, at: int) -> tuple[list[Save], list[Save], bool]:
    """Saves that a child, killed at operation `at`, had reported; and whether it ended."""
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(root), str(at)]
    child = subprocess.run(
        [*command, str(Path(__file__).parent), str(Path(__file__).parents[2] / "support")],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = child.stdout.splitlines()
    assert child.returncode in (0, -9), child.stderr
    assert not any(line.startswith("failed") for line in lines), child.stdout
    reported: dict[str, list[Save]] = {"durable": [], "cached": []}
    for kind, items in reported.items():
        left = [*FIRST, *SECOND]
        for line in lines:
            if line.startswith(kind):
                found = next(item for item in left if item.agent_id == line.split()[1])
                left.remove(found)
                items.append(found)
    return reported["durable"], reported["cached"], "end" in lines


def kill_points() -> list[int]:
    # About 100 operations; a prime step meets every kind of them.
    return list(range(130)) if FULL else list(range(2, 110, 13))


@pytest.mark.parametrize("at", kill_points())
def test_a_kill_at_any_operation_loses_nothing_that_was_reported(
    tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    durable, cached, ended = run_killed(tmp_path, at)

    with caplog.at_level(logging.WARNING, "kvactors"):
        store = Store(tmp_path)

        store.sweep()

    assert not caplog.records, "opening needs no repair"
    assert not leftovers(tmp_path)
    check(store, durable, cached)
    assert len(durable) == 7 or not ended
    heal(store)
    store.close()


def test_a_kill_before_superseded_segments_are_deleted_leaves_them_to_the_sweep(
    tmp_path: Path,
) -> None:
    files = CountingFiles()
    store = Store(tmp_path / "count", files=files)
    put(store, *FIRST)
    put(store, *SECOND)
    store.close()
    at = next(o.index for o in files.operations if o.matches("unlink", "*/b-*/seg-*"))

    durable, cached, _ = run_killed(tmp_path / "s", at)

    [old] = (tmp_path / "s").rglob("b-*/seg-0-4-*")
    store = Store(tmp_path / "s")
    assert store.read_kv("b", F) == SECOND[1].segments
    assert not old.exists()
    check(store, durable, cached)
    store.close()


@pytest.mark.parametrize("seed", range(200 if FULL else 20))
def test_a_power_loss_at_any_operation_loses_nothing_that_was_reported(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    disk = PowerLossFiles()
    files = FailingFiles(disk, at=random.randrange(110), sticky=True, code=errno.EIO)
    outcomes = Outcomes()
    with suppress(StoreNotWritable):
        store = Store(tmp_path / "s", files=files)
        outcomes.commit(store, *FIRST)
        outcomes.commit(store, *SECOND)
        store.close()
    disk.lose_power(random if seed % 4 else None)

    again = Store(tmp_path / "s")

    check(again, outcomes.durable, outcomes.cached)
    again.sweep()
    assert not leftovers(tmp_path / "s")
    heal(again)
    again.close()


@pytest.mark.parametrize("at", range(0, 110, 1 if FULL else 6))
def test_what_is_saved_after_a_kill_outlives_a_power_loss(tmp_path: Path, at: int) -> None:
    disk = PowerLossFiles()
    with suppress(StoreNotWritable):
        files = FailingFiles(disk, at=at, sticky=True, code=errno.EIO)
        store = Store(tmp_path / "s", files=files)
        put(store, *FIRST)
        put(store, *SECOND)
        store.close()
    # The names that the killed process left unsynced have to be made durable as well.
    store = Store(tmp_path / "s", files=disk)
    heal(store)
    store.close()

    disk.lose_power()

    again = Store(tmp_path / "s")
    for agent in ("a", "b", "c", "new"):
        assert (again.read_ledger(agent) or ())[-1] == {"turn": 9}
        assert again.read_kv(agent, F) == (example_segment(0, 9, seed=9),)
    again.close()


def test_a_disk_that_ignores_syncs_is_caught_and_never_gives_wrong_bytes(tmp_path: Path) -> None:
    class Forgetful(PowerLossFiles):
        def sync(self, path: Path) -> None:
            pass

    disk = Forgetful()
    store = Store(tmp_path, files=disk)
    put(store, *FIRST)
    store.close()
    disk.lose_power()

    again = Store(tmp_path)

    for agent in again.agents():
        assert agent.problem is not None
        assert again.read_kv(agent.agent_id, F) == ()
    again.close()


def test_a_save_that_is_held_back_says_when_it_is_reached(tmp_path: Path) -> None:
    files = HoldingFiles(name="sync", path="*/seg-*")
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
