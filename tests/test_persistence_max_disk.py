"""max_disk: what it evicts, what it never does, what does not fit."""

from __future__ import annotations

from pathlib import Path

from kvactors.persistence import (
    MaxDiskExceeded,
    Save,
    Segment,
    Store,
)
from kvactors.persistence.testing import Outcomes, example_segment

F1 = "0" * 16


def put(store: Store, *saves: Save) -> Outcomes:
    outcomes = Outcomes()
    outcomes.commit(store, *saves)
    return outcomes


def kv_save(agent: str, *segments: Segment, fingerprint: str = F1) -> Save:
    return Save(agent, ({"n": segments[-1].end},), fingerprint, segments)


def test_the_cap_evicts_the_least_recently_used_kv_and_never_a_ledger(tmp_path: Path) -> None:
    store = Store(tmp_path, max_disk=10_000)
    for seed, name in enumerate("abc"):
        put(store, kv_save(name, example_segment(0, 256, seed=seed)))
    size = store.kv_size // 3
    for age, name in enumerate("abc"):
        store.read_kv(name, F1)
        assert 2500 < size < 3333, age
    store.read_kv("a", F1)

    outcomes = put(store, kv_save("d", example_segment(0, 256, seed=3)))

    assert not outcomes.failed
    assert [store.kv_extent(name, F1) for name in "abcd"] == [256, 0, 256, 256]
    assert store.read_ledger("b") == ({"n": 256},)
    on_disk = sum(path.stat().st_size for path in (tmp_path / "kv").rglob("*") if path.is_file())
    assert on_disk == store.kv_size <= 10_000
    store.close()


def test_kv_that_cannot_fit_fails_with_the_numbers_and_evicts_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path, max_disk=5_000)
    put(store, kv_save("a", example_segment(0, 256)))

    outcomes = put(store, kv_save("b", example_segment(0, 1000)))

    [(_, part, error)] = outcomes.failed
    assert part == "kv"
    assert isinstance(error, MaxDiskExceeded)
    assert error.needed > error.limit == 5_000
    assert "5000 bytes" in str(error)
    assert store.kv_extent("a", F1) == 256
    assert store.read_ledger("b") == ({"n": 1000},)
    store.close()


def test_saves_of_one_group_never_evict_each_other(tmp_path: Path) -> None:
    store = Store(tmp_path, max_disk=4_000)
    first, second = (kv_save(n, example_segment(0, 256, seed=ord(n))) for n in "ab")

    outcomes = put(store, first, second)

    assert outcomes.durable == [first, second]
    assert outcomes.cached == [first]
    assert [(save, type(error)) for save, _, error in outcomes.failed] == [
        (second, MaxDiskExceeded)
    ]
    assert store.read_kv("a", F1) == first.segments
    store.close()


def test_the_cap_counts_again_after_reopening(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, kv_save("a", example_segment(0, 256)), kv_save("b", example_segment(0, 256)))
    size = store.kv_size
    store.close()

    again = Store(tmp_path, max_disk=size)

    assert again.kv_size == size
    put(again, kv_save("c", example_segment(0, 8)))
    assert again.kv_size <= size
    assert again.kv_extent("c", F1) == 8
    again.close()
