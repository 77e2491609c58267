"""Segments that several agents share: one file on disk, and never one that is damaged."""

from __future__ import annotations

from pathlib import Path

from store_saves import F1, inodes, kv_save, put

from kvactors.persistence import Store
from kvactors.persistence.testing.doubles import (
    FailingFiles,
    example_segment,
)

SEGMENTS = (example_segment(0, 256), example_segment(256, 300))


def test_agents_with_the_same_beginning_share_its_segments(tmp_path: Path) -> None:
    store = Store(tmp_path)
    head = example_segment(0, 256, token_bytes=64)
    tails = {name: example_segment(256, 260, seed=n) for n, name in enumerate("abcdefgh")}
    put(store, *(kv_save(name, head, tail) for name, tail in list(tails.items())[:4]))
    put(store, *(kv_save(name, head, tail) for name, tail in list(tails.items())[4:]))

    files = {path.stat().st_ino for path in tmp_path.rglob("seg-0-256-*")}
    assert len(files) == 1
    assert store.bytes_written < 2 * 256 * 64 * 1.5
    for name, tail in tails.items():
        assert store.read_kv(name, F1) == (head, tail)
    for name in "abcdefg":
        store.forget(name)
    assert store.read_kv("h", F1) == (head, tails["h"])
    store.close()


def test_a_store_that_shares_nothing_writes_each_agents_own_segments(tmp_path: Path) -> None:
    store = Store(tmp_path, share_segments=False)

    put(store, kv_save("a", SEGMENTS[0]), kv_save("b", SEGMENTS[0]))
    put(store, kv_save("c", SEGMENTS[0]))

    assert len(inodes(tmp_path)) == 3
    store.close()


def test_a_fork_in_a_store_that_shares_nothing_has_files_of_its_own(tmp_path: Path) -> None:
    store = Store(tmp_path, share_segments=False)
    put(store, kv_save("a", *SEGMENTS))
    written = store.bytes_written
    size = sum(path.stat().st_size for path in tmp_path.rglob("seg-*"))

    store.fork("a", "child")

    assert store.bytes_written - written > size
    assert [agent.shared_bytes for agent in store.agents()] == [0, 0]
    assert {path.stat().st_nlink for path in tmp_path.rglob("seg-*")} == {1}
    for path in tmp_path.rglob("a-*/seg-*"):
        path.write_bytes(bytes(path.stat().st_size))
    assert store.read_kv("a", F1) == ()
    assert store.read_kv("child", F1) == SEGMENTS
    store.close()


def test_what_was_linked_before_stays_so_until_it_is_written_again(tmp_path: Path) -> None:
    sharing = Store(tmp_path)
    put(sharing, kv_save("a", *SEGMENTS), kv_save("b", *SEGMENTS))
    sharing.close()
    store = Store(tmp_path, share_segments=False)

    store.fork("a", "child")

    assert len(inodes(tmp_path)) == 4
    assert store.read_kv("child", F1) == SEGMENTS
    store.close()


def test_a_segment_read_by_this_process_is_shared_and_a_damaged_one_is_not_trusted(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    put(store, kv_save("a", SEGMENTS[0]))
    store.close()
    again = Store(tmp_path)
    assert again.read_kv("a", F1) == SEGMENTS[:1]

    put(again, kv_save("b", SEGMENTS[0]))
    [path] = (tmp_path / "kv").rglob("a-*/seg-0-256-*")
    assert path.stat().st_nlink == 2
    path.unlink()
    path.write_bytes(b"short")
    put(again, kv_save("c", SEGMENTS[0]))

    assert again.read_kv("c", F1) == SEGMENTS[:1]
    assert again.read_kv("b", F1) == SEGMENTS[:1]
    assert again.read_kv("a", F1) == ()
    again.close()


def test_a_save_outlives_the_failure_of_the_one_it_would_share_with(tmp_path: Path) -> None:
    files = FailingFiles(name="rename", path="*/a-*/seg-*")
    store = Store(tmp_path, files=files)

    outcomes = put(store, kv_save("a", SEGMENTS[0]), kv_save("b", SEGMENTS[0]))

    assert [(save.agent_id, part) for save, part, _ in outcomes.failed] == [("a", "kv")]
    assert store.read_kv("b", F1) == SEGMENTS[:1]
    store.close()
