"""max_disk: what it evicts, what it never does, what does not fit."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from store_saves import F1, kv_save, put

from kvactors.persistence import MaxDiskExceeded, Store
from kvactors.persistence.testing.doubles import example_segment


def on_disk(root: Path) -> int:
    """Bytes of all files of KV."""
    return sum(path.stat().st_size for path in (root / "kv").rglob("*") if path.is_file())


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
    assert on_disk(tmp_path) == store.kv_size <= 10_000
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


def test_a_smaller_cap_than_before_holds_after_a_save_whoever_had_too_much(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, kv_save("a", example_segment(0, 1000)), kv_save("b", example_segment(0, 256)))
    store.close()
    again = Store(tmp_path, max_disk=2_000)
    evicted = set[tuple[str, str]]()
    again.limit.evicted = lambda agent, fingerprint: evicted.add((agent, fingerprint))

    outcomes = put(again, kv_save("a", example_segment(1000, 1008)))

    assert [type(error) for *_, error in outcomes.failed] == [MaxDiskExceeded]
    assert evicted == {("a", F1), ("b", F1)}
    assert on_disk(tmp_path) == again.kv_size == 0
    assert put(again, kv_save("a", example_segment(0, 8))).cached
    assert again.read_ledger("a") == ({"n": 1000}, {"n": 1008}, {"n": 8})
    again.close()


def filled(root: Path, names: str, room: int) -> Store:
    """A store whose agents, oldest first, leave room for `room` more of their size."""
    store = Store(root)
    for name in names:
        put(store, kv_save(name, example_segment(0, 256, seed=ord(name))))
    size = store.kv_size // len(names)
    store.close()
    return Store(root, max_disk=size * (len(names) + room) + size // 2)


def test_busy_agents_are_evicted_last(tmp_path: Path) -> None:
    store = filled(tmp_path, "abcd", 0)
    evicted = list[tuple[str, str]]()
    store.limit.evicted = lambda agent, fingerprint: evicted.append((agent, fingerprint))
    store.limit.busy = lambda: ["b"]

    for name in "efgh":
        put(store, kv_save(name, example_segment(0, 256, seed=ord(name))))

    assert evicted == [("a", F1), ("c", F1), ("d", F1), ("e", F1)]
    assert store.kv_extent("b", F1) == 256
    # Only without its KV is there room.
    put(store, kv_save("i", example_segment(0, 1100)))
    assert evicted[4:] == [("f", F1), ("g", F1), ("h", F1), ("b", F1)]
    store.close()


def test_an_eviction_is_logged_with_the_agents_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(tmp_path, "ab", 0)

    with caplog.at_level(logging.WARNING, "kvactors"):
        put(store, kv_save("c", example_segment(0, 256)))

    assert "the KV of 'a'" in caplog.text
    assert "max_disk" in caplog.text
    store.close()


def test_the_order_of_use_outlives_the_process(tmp_path: Path) -> None:
    filled(tmp_path, "abc", 0).close()
    store = Store(tmp_path)
    store.read_kv("a", F1)
    limit = store.kv_size + 100
    store.close()

    again = Store(tmp_path, max_disk=limit)
    put(again, kv_save("d", example_segment(0, 256)))

    assert [again.kv_extent(name, F1) for name in "abcd"] == [256, 0, 256, 256]
    again.close()


def test_evicting_shared_segments_goes_on_until_it_frees_something(tmp_path: Path) -> None:
    store = Store(tmp_path)
    shared = example_segment(0, 256)
    put(store, *(kv_save(name, shared) for name in "abc"))
    limit = store.kv_size + 1000
    store.close()
    again = Store(tmp_path, max_disk=limit)

    outcomes = put(again, kv_save("d", example_segment(0, 256, seed=1)))

    assert not outcomes.failed
    assert [again.kv_extent(name, F1) for name in "abcd"] == [0, 0, 0, 256]
    assert again.kv_size <= limit
    again.close()


def test_a_fork_that_frees_next_to_nothing_stays_where_another_has_to_leave(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    shared = example_segment(0, 256)
    put(store, kv_save("fork", shared))
    put(store, kv_save("alone", example_segment(0, 256, seed=1)))
    put(store, kv_save("parent", shared))
    limit = store.kv_size + 1000
    store.close()
    again = Store(tmp_path, max_disk=limit)

    put(again, kv_save("new", example_segment(0, 256, seed=2)))

    kept = [again.kv_extent(name, F1) for name in ("fork", "alone", "parent", "new")]
    assert kept == [256, 0, 256, 256]
    again.close()


def test_a_folder_that_cannot_be_read_keeps_no_other_agents_kv_from_the_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(store := Store(tmp_path), kv_save("a", example_segment(0, 256)))
    store.close()
    store = Store(tmp_path)
    [folder] = (tmp_path / "kv" / F1).iterdir()
    folder.rename(tmp_path / "elsewhere")
    folder.write_bytes(b"no folder")

    outcomes = put(store, kv_save("b", example_segment(0, 256)))

    assert not outcomes.failed
    assert str(folder) in caplog.text
    store.close()


def test_what_a_refused_save_was_to_write_is_free_for_no_other(tmp_path: Path) -> None:
    store = Store(tmp_path, max_disk=5_000)
    segment = example_segment(0, 1000)

    outcomes = put(store, kv_save("a", segment), kv_save("b", segment))

    assert [type(error) for *_, error in outcomes.failed] == [MaxDiskExceeded, MaxDiskExceeded]
    assert store.kv_size == on_disk(tmp_path) == 0
    store.close()


@pytest.mark.parametrize(("cap", "tokens"), [(6_000, 0), (8_000, 800)])
def test_what_was_to_be_linked_and_is_evicted_instead_is_written_within_the_cap(
    tmp_path: Path, cap: int, tokens: int
) -> None:
    store = Store(tmp_path, max_disk=cap)
    head, tail, longer = (example_segment(*part) for part in ((0, 256), (256, 512), (256, 800)))
    put(store, kv_save("a", head, tail))

    put(store, kv_save("b", head, longer))

    assert [store.kv_extent(name, F1) for name in "ab"] == [0, tokens]
    assert store.kv_size == on_disk(tmp_path) <= cap
    store.close()
