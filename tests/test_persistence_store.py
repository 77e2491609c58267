"""The store as its users see it: round trips, commit order, gaps, the cap, ids, locks."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import textwrap
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvactors.persistence import (
    DiskCapExceeded,
    Files,
    InvalidFingerprint,
    KvGap,
    LedgerUnreadable,
    Save,
    Segment,
    Store,
    StoreAlreadyOpen,
    StoreClosed,
    StoreLocked,
    StoreNotWritable,
    atomic,
)
from kvactors.persistence.naming import encode_agent_id
from kvactors.persistence.testing import CountingFiles, FailingFiles, Outcomes, example_segment

F1, F2 = "0" * 16, "f" * 32
RECORD: dict[Any, Any] = {
    "role": "user",
    "text": "My cat is Biscuit.",
    "ids": [1, 2, 3],
    7: b"\x00\xff",
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "store")
    yield opened
    opened.close()


def put(store: Store, *saves: Save) -> Outcomes:
    outcomes = Outcomes()
    outcomes.commit(store, *saves)
    return outcomes


def kv_save(agent: str, *segments: Segment, fingerprint: str = F1) -> Save:
    return Save(agent, ({"n": segments[-1].end},), fingerprint, segments)


def files_below(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_what_is_saved_comes_back_byte_for_byte_after_reopening(tmp_path: Path) -> None:
    first, second = example_segment(0, 256), example_segment(256, 300)
    store = Store(tmp_path)
    outcomes = put(store, Save("alice", (RECORD, {"b": 2}), F1, (first, second)))
    store.close()

    again = Store(tmp_path)

    assert not outcomes.failed
    assert outcomes.durable == outcomes.cached
    assert again.read_ledger("alice") == (RECORD, {"b": 2})
    assert again.read_kv("alice", F1) == (first, second)
    assert again.kv_extent("alice", F1) == 300
    assert again.read_kv("alice", F2) == ()
    assert again.read_ledger("bob") is None
    again.close()


def test_a_group_commit_orders_ledgers_before_segments_before_manifests(tmp_path: Path) -> None:
    files = CountingFiles()
    store = Store(tmp_path, files=files)
    start = len(files.operations)
    order: list[str] = []

    store.commit(
        [kv_save(name, example_segment(0, 8)) for name in "abc"],
        durable=lambda save: order.append(f"durable {save.agent_id} {len(files.operations)}"),
        cached=lambda save: order.append(f"cached {save.agent_id}"),
        failed=lambda save, part, error: order.append(f"failed {part}"),
    )

    names = [(item.name, item.path.name) for item in files.operations[start:]]
    renames = [name.split("-")[0] for kind, name in names if kind == "rename"]
    assert renames == ["ledger.log"] * 3 + ["seg"] * 3 + ["manifest.msgpack"] * 3
    assert [line.split()[0] for line in order] == ["durable"] * 3 + ["cached"] * 3
    assert len({line.split()[2] for line in order if line.startswith("durable")}) == 1
    # One sync of each shared folder for all three agents.
    assert names.count(("sync_dir", "agents")) == 1
    assert names.count(("sync_dir", "kv")) == 1
    store.close()


def test_nothing_is_renamed_before_it_is_synced(tmp_path: Path) -> None:
    files = CountingFiles()
    store = Store(tmp_path, files=files)
    put(store, kv_save("a", example_segment(0, 8)), kv_save("b", example_segment(0, 8)))

    synced = set()
    for operation in files.operations:
        if operation.name == "sync":
            synced.add(operation.path.name.removesuffix(".tmp"))
        if operation.name == "rename":
            assert operation.path.name in synced

    store.close()


def test_saves_of_one_agent_in_one_commit_are_kept_in_order(store: Store) -> None:
    saves = [Save("a", ({"n": n},), F1, (example_segment(n, n + 1),)) for n in range(4)]

    outcomes = put(store, *saves)

    assert outcomes.durable == outcomes.cached == saves
    assert store.read_ledger("a") == tuple({"n": n} for n in range(4))
    assert store.kv_extent("a", F1) == 4


def test_a_save_without_kv_is_durable_and_never_called_cached(store: Store) -> None:
    outcomes = put(store, Save("a", (RECORD,), None, ()), Save("b", (), None, ()))

    assert [save.agent_id for save in outcomes.durable] == ["a", "b"]
    assert outcomes.cached == []
    assert store.read_ledger("b") is None


def test_merging_into_256_token_blocks_writes_at_most_twice_the_final_size(store: Store) -> None:
    end, partial = 0, 0
    for turn in range(32):
        step = 64
        block = end // 256 * 256
        closes = (end + step) // 256 > end // 256
        segment = example_segment(block if closes else end, end + step, token_bytes=2048)
        outcomes = put(store, Save("a", ({"turn": turn},), F1, (segment,)))
        end, partial = end + step, partial + len(outcomes.cached)

    final = sum(len(data) for part in store.read_kv("a", F1) for *_, data in part.tensors)
    segments = list((store.root / "kv" / F1).rglob("seg-*"))
    assert partial == 32
    assert len(segments) == 8
    assert store.kv_extent("a", F1) == 32 * 64
    assert store.bytes_written <= 2 * final + 100_000


def test_a_save_replaces_every_segment_from_its_start_on(store: Store) -> None:
    put(store, kv_save("a", example_segment(0, 4), example_segment(4, 8), example_segment(8, 9)))

    new = example_segment(4, 20, seed=1)
    outcomes = put(store, kv_save("a", new))

    assert not outcomes.failed
    assert store.read_kv("a", F1) == (example_segment(0, 4), new)
    assert len(list((store.root / "kv" / F1).rglob("seg-*"))) == 2


def test_saving_the_same_segment_again_keeps_it(store: Store) -> None:
    segment = example_segment(0, 8)
    put(store, kv_save("a", segment))

    outcomes = put(store, kv_save("a", segment))

    assert not outcomes.failed
    assert store.read_kv("a", F1) == (segment,)


@pytest.mark.parametrize(
    ("segments", "numbers"),
    [
        ((example_segment(12, 16),), ("12", "[0, 8)", "token 8")),
        ((example_segment(4, 16),), ("4", "[0, 8)", "token 0")),
        ((example_segment(8, 9), example_segment(10, 11)), ("[10, 11)", "token 9")),
        ((example_segment(8, 8),), ("[8, 8)",)),
    ],
)
def test_a_gap_fails_the_kv_part_alone_and_names_the_numbers(
    store: Store, segments: tuple[Segment, ...], numbers: tuple[str, ...]
) -> None:
    put(store, kv_save("a", example_segment(0, 8)))

    outcomes = put(store, Save("a", (RECORD,), F1, segments))

    [(_, part, error)] = outcomes.failed
    assert part == "kv"
    assert isinstance(error, KvGap)
    assert all(number in str(error) for number in numbers)
    assert len(store.read_ledger("a") or ()) == 2
    assert store.kv_extent("a", F1) == 8


def test_a_fingerprint_that_is_not_hex_is_refused(store: Store) -> None:
    outcomes = put(store, kv_save("a", example_segment(0, 8), fingerprint="../../evil00000000"))

    assert isinstance(outcomes.failed[0][2], InvalidFingerprint)
    assert store.read_ledger("a") == ({"n": 8},)
    with pytest.raises(InvalidFingerprint):
        store.read_kv("a", "ABCDEF0123456789")


def test_a_record_that_cannot_be_packed_fails_its_save_alone(store: Store) -> None:
    bad = Save("bad", ({"x": object()},), F1, (example_segment(0, 8),))

    outcomes = put(store, bad, kv_save("good", example_segment(0, 8)))

    assert [(save.agent_id, part) for save, part, _ in outcomes.failed] == [("bad", "ledger")]
    assert [save.agent_id for save in outcomes.cached] == ["good"]
    assert store.read_ledger("bad") is None
    assert store.kv_extent("bad", F1) == 0


def test_forget_leaves_nothing_of_the_agent(store: Store) -> None:
    put(store, kv_save("a", example_segment(0, 8)), kv_save("b", example_segment(0, 8)))
    put(store, kv_save("a", example_segment(0, 8), fingerprint=F2))
    before = files_below(store.root)

    store.forget("a")
    store.forget("never there")

    gone = before - files_below(store.root)
    assert len(gone) == 5
    assert [agent.agent_id for agent in store.agents()] == ["b"]
    assert store.read_ledger("a") is None
    put(store, kv_save("a", example_segment(0, 8)))
    assert store.kv_extent("a", F1) == 8


def test_agents_lists_what_is_stored(store: Store) -> None:
    put(store, Save("a", (RECORD, RECORD), F1, (example_segment(0, 8),)))
    put(store, Save("b", (RECORD,), None, ()))

    a, b = store.agents()

    assert (a.agent_id, a.records, a.kv_tokens, a.problem) == ("a", 2, {F1: 8}, None)
    assert (b.agent_id, b.records, b.kv_bytes) == ("b", 1, {})
    assert a.kv_bytes[F1] == store.kv_size > 128
    assert a.ledger_bytes > b.ledger_bytes > 0
    assert a.last_used > 1e9


HOSTILE = [
    "../../etc/passwd", "a/b", "/", "..", ".", "", "CON", "Alice", "alice", "ALICE", "a\0b",
    "a\nb", "\ud800", unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é"),
    "🦊", "x" * 255, "x" * 5000, "~", "a" * 40, "ledger.log", "store.lock", "日本", "-rf",
]  # fmt: skip


def test_any_unicode_id_has_its_own_place_inside_the_store(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "store"
    store = Store(root)
    saves = [Save(name, ({"id": name},), F1, (example_segment(0, 2, seed=n),))
             for n, name in enumerate(HOSTILE)]  # fmt: skip
    outcomes = put(store, *saves)
    store.close()

    again = Store(root)

    assert not outcomes.failed
    assert {agent.agent_id for agent in again.agents()} == set(HOSTILE)
    for save in saves:
        assert again.read_ledger(save.agent_id) == save.records
        assert again.read_kv(save.agent_id, F1) == save.segments
    names = [path.name for path in (root / "agents").iterdir()]
    assert len({name.casefold() for name in names}) == len(HOSTILE)
    assert all(name.isascii() and len(name) <= 73 for name in names)
    assert {path.name for path in root.iterdir()} == {"agents", "kv", "store.lock"}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["store"]
    again.close()


def test_an_agent_whose_name_hashes_like_anothers_is_refused(store: Store) -> None:
    put(store, Save("a", (RECORD,), None, ()))
    folder = store.root / "agents"
    (folder / encode_agent_id("a")).rename(folder / encode_agent_id("b"))

    with pytest.raises(LedgerUnreadable, match="belongs to 'a', not to 'b'"):
        store.read_ledger("b")


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = Store(tmp_path / "s")
        put(store, kv_save("a", example_segment(0, 8)))
        store.close()
    finally:
        os.umask(before)

    for path in [tmp_path / "s", *(tmp_path / "s").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_the_cap_evicts_the_least_recently_used_kv_and_never_a_ledger(tmp_path: Path) -> None:
    store = Store(tmp_path, disk_cap=10_000)
    for name in "abc":
        put(store, kv_save(name, example_segment(0, 256)))
    size = store.kv_size // 3
    for age, name in enumerate("abc"):
        store.read_kv(name, F1)
        assert 2500 < size < 3333, age
    store.read_kv("a", F1)

    outcomes = put(store, kv_save("d", example_segment(0, 256)))

    assert not outcomes.failed
    assert [store.kv_extent(name, F1) for name in "abcd"] == [256, 0, 256, 256]
    assert store.read_ledger("b") == ({"n": 256},)
    on_disk = sum(path.stat().st_size for path in (tmp_path / "kv").rglob("*") if path.is_file())
    assert on_disk == store.kv_size <= 10_000
    store.close()


def test_kv_that_cannot_fit_fails_with_the_numbers_and_evicts_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path, disk_cap=5_000)
    put(store, kv_save("a", example_segment(0, 256)))

    outcomes = put(store, kv_save("b", example_segment(0, 1000)))

    [(_, part, error)] = outcomes.failed
    assert part == "kv"
    assert isinstance(error, DiskCapExceeded)
    assert error.needed > error.cap == 5_000
    assert "5000 bytes" in str(error)
    assert store.kv_extent("a", F1) == 256
    assert store.read_ledger("b") == ({"n": 1000},)
    store.close()


def test_saves_of_one_group_never_evict_each_other(tmp_path: Path) -> None:
    store = Store(tmp_path, disk_cap=4_000)
    first, second = (kv_save(name, example_segment(0, 256)) for name in "ab")

    outcomes = put(store, first, second)

    assert outcomes.durable == [first, second]
    assert outcomes.cached == [first]
    assert [(save, type(error)) for save, _, error in outcomes.failed] == [
        (second, DiskCapExceeded)
    ]
    assert store.read_kv("a", F1) == first.segments
    store.close()


def test_the_cap_counts_again_after_reopening(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, kv_save("a", example_segment(0, 256)), kv_save("b", example_segment(0, 256)))
    size = store.kv_size
    store.close()

    again = Store(tmp_path, disk_cap=size)

    assert again.kv_size == size
    put(again, kv_save("c", example_segment(0, 8)))
    assert again.kv_size <= size
    assert again.kv_extent("c", F1) == 8
    again.close()


def test_a_store_open_in_this_process_says_so(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    (tmp_path / "link").symlink_to(tmp_path / "s")

    with pytest.raises(StoreAlreadyOpen, match="notebook"):
        Store(tmp_path / "link")

    store.close()
    store.close()
    Store(tmp_path / "link").close()


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.close()

    with pytest.raises(StoreClosed):
        store.read_ledger("a")


def run_child(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *args],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_store_open_in_another_process_names_its_pid(tmp_path: Path) -> None:
    store = Store(tmp_path)

    child = run_child(
        """
        import sys
        from kvactors.persistence import Store, StoreLocked
        try:
            Store(sys.argv[1])
        except StoreLocked as error:
            print(error.pid)
        """,
        str(tmp_path),
    )

    assert child.stdout.strip() == str(os.getpid()), child.stderr
    store.close()
    assert issubclass(StoreLocked, Exception)


def test_neither_a_killed_process_nor_its_forked_child_leaves_a_lock(tmp_path: Path) -> None:
    code = """
        import os, signal, sys
        from kvactors.persistence import Store, StoreClosed
        store = Store(sys.argv[1])
        if os.fork() == 0:
            try:
                store.read_ledger("a")
            except StoreClosed:
                store.close()
            sys.stdin.read()
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], stdin=subprocess.PIPE
    ) as child:
        # The grandchild lives until stdin is closed at the end of this block.
        assert child.wait(timeout=60) == -signal.SIGKILL

        Store(tmp_path).close()


def test_a_path_that_cannot_be_a_store_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    with pytest.raises(StoreNotWritable, match="directory"):
        Store(tmp_path / "file")
    with pytest.raises(StoreNotWritable, match="directory"):
        Store(tmp_path / "file" / "below")


def test_a_directory_that_cannot_be_written_is_a_clear_error_and_stays_unlocked(
    tmp_path: Path,
) -> None:
    files = FailingFiles(name="mkdir", code=errno.EROFS)

    with pytest.raises(StoreNotWritable, match="Read-only file system"):
        Store(tmp_path, files=files)
    with pytest.raises(StoreNotWritable, match="Read-only file system"):
        Store(tmp_path / "new", files=files)

    Store(tmp_path).close()


def test_a_sync_is_a_full_one_where_there_is_one_and_falls_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def full_sync(fd: int, command: int) -> None:
        calls.append("full")
        raise OSError(errno.ENOTSUP, "not here")

    monkeypatch.setattr(atomic, "_FULL_SYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", full_sync)
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("plain"))

    Files().sync_dir(tmp_path)

    assert calls == ["full", "plain"]
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, command: calls.append("full alone"))
    Files().sync_dir(tmp_path)
    assert calls[2:] == ["full alone"]


def test_importing_the_store_loads_neither_mlx_nor_numpy_nor_pykka() -> None:
    child = run_child(
        """
        import sys
        import kvactors.persistence, kvactors.persistence.testing
        heavy = {"mlx", "mlx_lm", "numpy", "pykka", "kvactors.core", "kvactors.actors"}
        print(sorted(heavy & set(sys.modules)))
        """
    )

    assert child.stdout.strip() == "[]", child.stderr


def test_a_store_needs_no_file_at_its_top_level(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, kv_save("a", example_segment(0, 8)))
    store.close()
    (tmp_path / "store.lock").unlink()

    again = Store(tmp_path)

    assert again.kv_extent("a", F1) == 8
    again.close()
