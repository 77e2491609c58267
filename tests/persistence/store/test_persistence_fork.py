"""Forks and shared segments: one file, several agents, and no harm from one to another."""

from __future__ import annotations

import errno
import subprocess
import sys
import textwrap
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import pytest
from samples import DAY, sample_of
from store_saves import F1, RECORD, Unsynced, inodes, kv_save, put

from kvactors.persistence import AgentExists, AgentNotStored, Save, Store
from kvactors.persistence.testing.doubles import (
    CountingFiles,
    FailingFiles,
    PowerLossFiles,
    example_segment,
)

F2 = "1" * 16
SEGMENTS = (example_segment(0, 256), example_segment(256, 300))
OTHER_MODEL = example_segment(0, 40, seed=7)


def with_parent(root: Path, **options: object) -> Store:
    """A store whose agent "parent" has two turns and KV under two models."""
    store = Store(root, **options)  # type: ignore[arg-type]
    put(
        store,
        Save("parent", (RECORD,), F1, SEGMENTS),
        Save("parent", ({"turn": 2}, {"turn": 3}), F2, (OTHER_MODEL,)),
    )
    return store


def check_whole(store: Store, agent: str) -> None:
    assert store.read_ledger(agent) == (RECORD, {"turn": 2}, {"turn": 3})
    assert store.read_kv(agent, F1) == SEGMENTS
    assert store.read_kv(agent, F2) == (OTHER_MODEL,)


def test_a_fork_has_all_of_the_parents_memory_and_no_segment_of_its_own(tmp_path: Path) -> None:
    store = with_parent(tmp_path)
    before, written = store.kv_size, store.bytes_written

    store.fork("parent", "child")

    check_whole(store, "child")
    assert len(inodes(tmp_path)) == 3
    assert len(list(tmp_path.rglob("seg-*"))) == 6
    assert store.kv_size - before < 1000
    assert store.bytes_written - written < 1500
    segments = sum(path.stat().st_size for path in tmp_path.rglob("parent-*/seg-*"))
    assert {agent.shared_bytes for agent in store.agents()} == {segments}
    store.close()
    again = Store(tmp_path)
    check_whole(again, "parent")
    check_whole(again, "child")
    assert again.kv_size - before < 1000
    again.close()


@pytest.mark.parametrize(("first", "second"), [("parent", "child"), ("child", "parent")])
def test_either_may_be_forgotten_first(tmp_path: Path, first: str, second: str) -> None:
    store = with_parent(tmp_path)
    store.fork("parent", "child")

    store.forget(first)

    check_whole(store, second)
    assert store.read_ledger(first) is None
    assert [agent.shared_bytes for agent in store.agents()] == [0]
    on_disk = sum(path.stat().st_size for path in (tmp_path / "kv").rglob("*") if path.is_file())
    assert store.kv_size == on_disk
    store.forget(second)
    assert not list((tmp_path / "kv").iterdir())
    assert store.kv_size == 0
    store.close()


def test_parent_and_child_go_separate_ways(tmp_path: Path) -> None:
    store = with_parent(tmp_path)
    store.fork("parent", "child")
    mine, its = example_segment(256, 400, seed=1), example_segment(256, 310, seed=2)

    put(store, Save("parent", ({"mine": 1},), F1, (mine,)))
    put(store, Save("child", ({"its": 1},), F1, (its,)))

    assert store.read_kv("parent", F1) == (SEGMENTS[0], mine)
    assert store.read_kv("child", F1) == (SEGMENTS[0], its)
    assert (store.read_ledger("parent") or ())[-1] == {"mine": 1}
    assert (store.read_ledger("child") or ())[-1] == {"its": 1}
    assert not list(tmp_path.rglob("seg-256-300-*"))
    store.close()


def test_a_fork_of_nobody_or_onto_somebody_is_refused(tmp_path: Path) -> None:
    store = with_parent(tmp_path)
    put(store, kv_save("child", example_segment(0, 4)))

    with pytest.raises(AgentExists, match="'child' exists, and nothing new is"):
        store.fork("parent", "child")
    with pytest.raises(AgentExists, match="'parent' exists, and nothing new is"):
        store.fork("parent", "parent")
    with pytest.raises(AgentNotStored, match=r"'nobody' is not stored: .*known_agents"):
        store.fork("nobody", "new")

    assert store.read_kv("child", F1) == (example_segment(0, 4),)
    assert {agent.agent_id for agent in store.agents()} == {"parent", "child"}
    store.close()


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.EMLINK])
def test_where_a_file_cannot_be_linked_it_is_copied(tmp_path: Path, code: int) -> None:
    store = with_parent(tmp_path, files=FailingFiles(name="link", code=code))

    store.fork("parent", "child")
    put(store, kv_save("stranger", *SEGMENTS))

    check_whole(store, "child")
    assert store.read_kv("stranger", F1) == SEGMENTS
    assert len(inodes(tmp_path)) == 8
    store.forget("parent")
    check_whole(store, "child")
    store.close()


@pytest.mark.parametrize("share", [True, False])
def test_a_fork_that_max_disk_has_no_room_for_is_cold(tmp_path: Path, *, share: bool) -> None:
    store = with_parent(tmp_path)
    size = store.kv_size
    store.close()
    # For a manifest, and for what links take; not for copies.
    full = Store(tmp_path, max_disk=size if share else size + 3000, share_segments=share)

    full.fork("parent", "child")

    assert len(full.read_ledger("child") or ()) == 3
    assert full.kv_extent("child", F1) == 0
    check_whole(full, "parent")
    full.close()


def operations_of_a_fork(root: Path, *, share: bool = True) -> int:
    files = CountingFiles()
    store = with_parent(root, files=files, share_segments=share)
    before = len(files.operations)
    store.fork("parent", "child")
    store.close()
    return len(files.operations) - before


@pytest.mark.parametrize("share", [True, False])
def test_an_error_at_any_operation_of_a_fork_leaves_no_child(
    tmp_path: Path, *, share: bool
) -> None:
    for at in range(operations_of_a_fork(tmp_path / "count", share=share)):
        root = tmp_path / str(at)
        files = FailingFiles(Unsynced(), at=at, code=errno.EIO)
        files.armed = False
        store = with_parent(root, files=files, share_segments=share)
        files.arm()

        with pytest.raises(OSError, match="Input/output"):
            store.fork("parent", "child")

        assert store.read_ledger("child") is None
        check_whole(store, "parent")
        store.fork("parent", "child")
        check_whole(store, "child")
        store.close()


def test_a_fork_that_cannot_be_undone_leaves_no_child_or_a_whole_one_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = 0
    for at in range(operations_of_a_fork(tmp_path / "count")):
        root = tmp_path / str(at)
        files = FailingFiles(Unsynced(), at=at, sticky=True, code=errno.EIO)
        files.armed = False
        store = with_parent(root, files=files)
        files.arm()
        caplog.clear()

        with pytest.raises(OSError, match="Input/output"):
            store.fork("parent", "child")

        files.armed = False
        store.close()
        again = Store(root, files=Unsynced())
        check_whole(again, "parent")
        child = again.read_ledger("child")
        if child is not None:
            left += 1
            assert child == again.read_ledger("parent")
            assert "forget it" in caplog.text
            again.forget("child")
        again.fork("parent", "child")
        check_whole(again, "child")
        again.close()
    assert left


@pytest.mark.parametrize("share", [True, False])
def test_a_power_loss_at_any_operation_of_a_fork_leaves_no_child_or_a_whole_one(
    tmp_path: Path, *, share: bool
) -> None:
    for at in range(operations_of_a_fork(tmp_path / "count", share=share) + 1):
        disk = PowerLossFiles()
        files = FailingFiles(disk, at=at, sticky=True, code=errno.EIO)
        files.armed = False
        store = with_parent(tmp_path / str(at), files=files, share_segments=share)
        files.arm()
        done = False
        with suppress(OSError):
            store.fork("parent", "child")
            done = True
        store.close()
        disk.lose_power(Random(f"{DAY} {at}") if at % 3 else None)

        again = Store(tmp_path / str(at))

        check_whole(again, "parent")
        check_forked(again, done=done)
        again.close()


def check_forked(store: Store, *, done: bool) -> None:
    """The child is not there, or has the ledger and, under each model, all KV or none."""
    records = store.read_ledger("child")
    warm = [store.read_kv("child", fingerprint) for fingerprint in (F1, F2)]
    assert records in ([(RECORD, {"turn": 2}, {"turn": 3})] if done else [
        None, (RECORD, {"turn": 2}, {"turn": 3}),
    ])  # fmt: skip
    assert warm[0] in ((SEGMENTS,) if done else ((), SEGMENTS))
    assert warm[1] in (((OTHER_MODEL,),) if done else ((), (OTHER_MODEL,)))
    assert records is not None or warm == [(), ()]
    store.sweep()
    assert not list(store.root.rglob("*.tmp"))
    store.forget("child")
    store.fork("parent", "child")
    check_whole(store, "child")


OPERATIONS = 32  # Of a fork, and of opening and closing its store.


def test_every_operation_of_a_fork_is_among_those_at_which_it_is_killed(tmp_path: Path) -> None:
    with_parent(tmp_path).close()
    files = CountingFiles()
    with closing(Store(tmp_path, files=files)) as store:
        store.fork("parent", "child")

    assert len(files.operations) == OPERATIONS


CHILD = """
    import sys
    sys.path[:0] = sys.argv[3:]
    from pathlib import Path
    from test_persistence_fork import with_parent
    from kvactors.persistence import Store
    from kvactors.persistence.testing.doubles import KillAt
    with_parent(Path(sys.argv[1])).close()
    store = Store(sys.argv[1], files=KillAt(int(sys.argv[2])))
    store.fork("parent", "child")
    store.close()
    print("end")
"""


@pytest.mark.parametrize("at", sample_of(range(OPERATIONS + 1), 6, "kills of forks"))
def test_a_kill_at_any_operation_of_a_fork_leaves_no_child_or_a_whole_one(
    tmp_path: Path, at: int
) -> None:
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(tmp_path), str(at)]
    child = subprocess.run(
        [
            *command,
            str(Path(__file__).parent),
            str(Path(__file__).parents[2] / "support"),
            str(Path(__file__).parents[2] / "support" / "store"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode in (0, -9), child.stderr

    store = Store(tmp_path)

    check_whole(store, "parent")
    check_forked(store, done="end" in child.stdout)
    store.close()
