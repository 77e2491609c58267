"""The store as its users see it: round trips, commit order, gaps, forgetting."""

from __future__ import annotations

import errno
import gc
import weakref
from pathlib import Path

import pytest
from store_saves import F1, RECORD, kv_save, put

from kvactors.persistence import (
    InvalidFingerprint,
    KvGap,
    LedgerUnreadable,
    Save,
    Segment,
    Store,
)
from kvactors.persistence.files.atomic import temp_path
from kvactors.persistence.testing.doubles import CountingFiles, FailingFiles, example_segment

F2 = "f" * 32


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
        [kv_save(name, example_segment(0, 8, seed=ord(name))) for name in "abc"],
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
    assert names.count(("fsync", "agents")) == 1
    assert names.count(("fsync", "kv")) == 1
    store.close()


@pytest.mark.parametrize("links", [True, False])
def test_nothing_is_renamed_before_it_is_on_the_medium(tmp_path: Path, *, links: bool) -> None:
    files = CountingFiles(FailingFiles(name="" if links else "link", code=errno.ENOTSUP))
    store = Store(tmp_path, files=files)
    put(store, kv_save("a", example_segment(0, 8)), kv_save("b", example_segment(0, 8)))

    handed, flushed, renamed = set[Path](), set[Path](), list[str]()
    for operation in files.operations:
        if operation.name in ("sync", "fsync"):
            handed.add(operation.path)
        if operation.name in ("sync", "flush"):
            flushed |= handed
        if operation.name == "rename":
            renamed.append(operation.path.name)
            assert temp_path(operation.path) in flushed

    assert renamed.count("ledger.log") == renamed.count("manifest.msgpack") == 2
    assert len(renamed) == (5 if links else 6)
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


@pytest.mark.parametrize("refused", ["nothing", "write_temp", "fsync", "flush", "rename"])
def test_nothing_is_held_of_a_save_that_is_over(tmp_path: Path, refused: str) -> None:
    files = FailingFiles(name=refused, path="*/seg-*")
    store = Store(tmp_path, files=files)
    tensor = memoryview(bytearray(64))
    held = weakref.ref(tensor)
    segment = Segment(0, 4, "hash", "[]", (("keys", "U8", (64,), tensor),))
    saves, errors = [Save("alice", (RECORD,), F1, (segment,))], list[BaseException]()
    del tensor, segment

    gc.disable()
    try:
        store.commit(
            saves,
            durable=lambda save: None,
            cached=lambda save: None,
            failed=lambda save, stage, error: errors.append(error),
        )
        saves.clear()
        assert held() is None
    finally:
        gc.enable()
    assert bool(errors) == (refused != "nothing")
    store.close()


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


def test_who_was_looked_at_in_finder_can_be_forgotten(store: Store) -> None:
    put(store, Save("a", (RECORD,), None, ()))
    (folder,) = (store.root / "agents").iterdir()
    (folder / ".DS_Store").touch()

    store.forget("a")

    assert store.agents() == []


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


def test_a_ledger_that_the_disk_does_not_give_is_that_agents_problem_alone(tmp_path: Path) -> None:
    put(
        store := Store(tmp_path),
        kv_save("a", example_segment(0, 8)),
        Save("b", (RECORD,), None, ()),
    )
    store.close()
    [folder] = (tmp_path / "agents").glob("a-*")
    (folder / "ledger.log").unlink()
    folder.rmdir()
    folder.write_bytes(b"no folder")
    store = Store(tmp_path)

    stored = {agent.agent_id: agent.problem for agent in store.agents()}
    [problem] = store.verify()

    assert stored.keys() == {"a", "b"}
    assert "Not a directory" in (stored["a"] or "")
    assert stored["b"] is None
    assert problem.path == folder / "ledger.log"
    store.close()


def test_a_folder_that_is_a_link_is_named_by_verify_as_it_is_refused(tmp_path: Path) -> None:
    put(store := Store(tmp_path / "store"), Save("a", (RECORD,), None, ()))
    store.close()
    [folder] = (tmp_path / "store" / "agents").iterdir()
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    store = Store(tmp_path / "store")

    [problem] = store.verify()

    assert "symbolic link" in problem.reason
    with pytest.raises(LedgerUnreadable, match="symbolic link"):
        store.read_ledger("a")
    store.close()
