"""A process that is killed and a machine that loses power: what was reported durable is there."""

from __future__ import annotations

import errno
import logging
import subprocess
import sys
import textwrap
from contextlib import suppress
from itertools import product
from pathlib import Path
from random import Random

import pytest
from crash_saves import FIRST, OPERATIONS, SECOND, F, check, heal, leftovers
from samples import sample_of
from store_saves import put

from kvactors.persistence import Save, Store, StoreNotWritable
from kvactors.persistence.testing.doubles import (
    CountingFiles,
    FailingFiles,
    Outcomes,
    PowerLossFiles,
    example_segment,
)

CHILD = """
    import sys
    sys.path[:0] = sys.argv[3:]
    from crash_saves import FIRST, SECOND
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
        [*command, str(Path(__file__).parents[2] / "support" / "store")],
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


@pytest.mark.parametrize("at", sample_of(range(OPERATIONS + 1), 10, "kills"))
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
    files = both_commits(tmp_path / "count")
    at = next(o.index for o in files.operations if o.matches("unlink", "*/b-*/seg-*"))

    durable, cached, _ = run_killed(tmp_path / "s", at)

    [old] = (tmp_path / "s").rglob("b-*/seg-0-4-*")
    store = Store(tmp_path / "s")
    assert store.read_kv("b", F) == SECOND[1].segments
    assert not old.exists()
    check(store, durable, cached)
    store.close()


def both_commits(root: Path) -> CountingFiles:
    """The operations of a new store and both commits."""
    files = CountingFiles()
    store = Store(root, files=files)
    put(store, *FIRST)
    put(store, *SECOND)
    store.close()
    return files


def test_every_operation_is_among_those_at_which_it_ends(tmp_path: Path) -> None:
    assert len(both_commits(tmp_path / "s").operations) == OPERATIONS


def lose_power(root: Path, at: int, fate: int | None) -> None:
    """End at operation `at`; what is there then must be all that was reported. `fate` says what
    the disk had written by itself: None, nothing."""
    disk = PowerLossFiles()
    files = FailingFiles(disk, at=at, sticky=True, code=errno.EIO)
    outcomes = Outcomes()
    with suppress(StoreNotWritable):
        store = Store(root, files=files)
        outcomes.commit(store, *FIRST)
        outcomes.commit(store, *SECOND)
        store.close()
    disk.lose_power(None if fate is None else Random(f"{at} {fate}"))

    again = Store(root)

    check(again, outcomes.durable, outcomes.cached)
    again.sweep()
    assert not leftovers(root)
    heal(again)
    again.close()


LOSSES = list(product(range(OPERATIONS + 1), (None, *range(9))))


@pytest.mark.parametrize(("at", "fate"), sample_of(LOSSES, 60, "power losses"))
def test_a_power_loss_at_any_operation_loses_nothing_that_was_reported(
    tmp_path: Path, at: int, fate: int | None
) -> None:
    lose_power(tmp_path / "s", at, fate)


def test_no_manifest_outlives_a_power_loss_without_its_segments(tmp_path: Path) -> None:
    made = both_commits(tmp_path / "count").operations
    named = [o.index for o in made if o.matches("rename", "*/manifest.msgpack")]

    for at in named:
        for fate in range(12):
            lose_power(tmp_path / f"{at}-{fate}", at + 1, fate)


@pytest.mark.parametrize("at", sample_of(range(OPERATIONS + 1), 18, "kills, then power losses"))
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
        def fsync(self, path: Path) -> None:
            if path.is_dir():
                super().fsync(path)

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
