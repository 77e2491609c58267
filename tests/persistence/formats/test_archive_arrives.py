"""An archive that arrives: read once, a segment at a time, nothing of it there before all is."""

import shutil
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from store_saves import F1, RECORD, put

from kvactors.persistence import Save, Store
from kvactors.persistence.errors import (
    ImportRejected,
    LedgerUnreadable,
    MaxDiskExceeded,
    NewerFormat,
)
from kvactors.persistence.formats.archive import export_archive, import_archive
from kvactors.persistence.testing.doubles import example_segment

F2 = "1" * 16
COUNTED = Path("/proc/self/io")


@pytest.fixture
def path(store: Store, tmp_path: Path) -> Path:
    """An archive of alice, who has two saves and KV under two models."""
    first = (example_segment(0, 256), example_segment(256, 300))
    second = (example_segment(0, 20, seed=7),)
    put(store, Save("alice", (RECORD,), F1, first), Save("alice", ({"n": 2},), F2, second))
    export_archive(store, "alice", tmp_path / "alice.kva")
    return tmp_path / "alice.kva"


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return Store(tmp_path / "other")


def bytes_read() -> int:
    """By this process, since it began."""
    return int(COUNTED.read_text(encoding="ascii").split()[1])


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


@pytest.fixture
def large(store: Store, tmp_path: Path) -> Path:
    """An archive of alice, who has KV under two models, in sixteen segments of a MB each."""
    for model in (F1, F2):
        ranges = [(start, start + 256) for start in range(0, 2048, 256)]
        segments = tuple(example_segment(*tokens, token_bytes=4096) for tokens in ranges)
        put(store, Save("alice", (RECORD,), model, segments))
    export_archive(store, "alice", tmp_path / "large.kva")
    assert (tmp_path / "large.kva").stat().st_size > 16 << 20
    return tmp_path / "large.kva"


@pytest.mark.skipif(not COUNTED.exists(), reason="only Linux counts what a process has read")
def test_an_archive_with_the_kv_of_several_models_is_read_once(
    store: Store, other: Store, large: Path
) -> None:
    before = bytes_read()

    import_archive(other, large, "alice")

    assert bytes_read() - before < 1.2 * large.stat().st_size
    assert same(store, "alice", other, "alice")


@pytest.mark.parametrize("key", [None, b"k" * 32])
def test_one_segment_at_a_time_is_in_memory(tmp_path: Path, large: Path, key: bytes | None) -> None:
    other = Store(tmp_path / "other", encryption_key=key)
    tracemalloc.start()

    import_archive(other, large, "alice")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 6 << 20
    assert other.kv_extent("alice", F2) == 2048
    assert len(other.read_kv("alice", F1)) == 8


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NewerFormat("a ledger", 9, 2), "ledger.log: .*in version 9: upgrade"),
        (LedgerUnreadable("a ledger", "it holds none"), "ledger.log: it holds none"),
    ],
)
def test_records_that_nobody_can_read_leave_nothing(
    store: Store, other: Store, path: Path, error: Exception, told: str
) -> None:
    seen = list[object]()

    def check(records: Sequence[object]) -> None:
        seen.extend(records)
        raise error

    with pytest.raises(ImportRejected, match=told):
        import_archive(other, path, "bob", check=check)

    assert tuple(seen) == store.read_ledger("alice")
    assert other.read_ledger("bob") is None
    assert not list(other.root.rglob("seg-*"))


def test_what_goes_wrong_beside_the_archive_is_not_said_to_be_wrong_with_it(
    other: Store, path: Path
) -> None:
    def breaks(_done: int, _steps: int) -> None:
        raise RuntimeError("of the progress bar")

    with pytest.raises(RuntimeError, match=r"^of the progress bar$"):
        import_archive(other, path, "bob", breaks)

    assert other.read_ledger("bob") is None
    assert not list(other.root.rglob("seg-*"))


def test_before_all_segments_are_there_a_crash_leaves_nothing(
    other: Store, path: Path, tmp_path: Path
) -> None:
    def crashes(done: int, _steps: int) -> None:
        shutil.copytree(other.root, tmp_path / f"after-{done}")

    import_archive(other, path, "bob", crashes)

    for done in (1, 2, 3):
        assert list((tmp_path / f"after-{done}").rglob("seg-*"))
        left = Store(tmp_path / f"after-{done}")
        assert left.read_ledger("bob") is None
        assert left.fingerprints("bob") == []
        assert left.kv_size == 0
        assert list(left.root.rglob("seg-*")) == []
        import_archive(left, path, "bob")
        assert same(other, "bob", left, "bob")


def test_kv_that_others_have_is_shared_and_what_has_no_room_leaves_nothing(
    store: Store, path: Path, tmp_path: Path
) -> None:
    before = store.kv_size
    import_archive(store, path, "bob")
    assert store.kv_size < before + 2000
    small = Store(tmp_path / "small", max_disk=3 * before // 4)

    with pytest.raises(MaxDiskExceeded):
        import_archive(small, path, "bob")

    assert (small.agents(), small.kv_size) == ([], 0)
    assert list(small.root.rglob("seg-*")) == []
