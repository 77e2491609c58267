"""Whatever the files of one agent become: the right bytes, or a typed refusal for it alone."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tracemalloc
from pathlib import Path
from random import Random

import pytest
from hostile_store import HOSTILE, spoil_at_random
from samples import sample_of
from store_saves import F1, Unsynced, put

from kvactors.persistence import Save, Segment, Store, StoreError
from kvactors.persistence.testing.doubles import example_segment

CASES = sample_of(range(2000), 100, "damage to files")
GROUPS = 10
ROOM = 64 << 20
SEED = 20


def segments_of(agent: str) -> tuple[Segment, ...]:
    ends = [0, 8, 16, 19]
    pairs = itertools.pairwise(ends)
    return tuple(example_segment(*pair, seed=ord(agent[0])) for pair in pairs)


def records_of(agent: str) -> tuple[dict[str, object], ...]:
    return tuple({"turn": n, "text": f"{agent} said {n}", "ids": bytes([n] * 9)} for n in range(3))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store: alice and bob have three turns and their KV."""
    root = tmp_path_factory.mktemp("sound") / "store"
    store = Store(root, files=Unsynced())
    for agent in ("alice", "bob"):
        records, parts = records_of(agent), segments_of(agent)
        for record, part in zip(records, parts, strict=True):
            put(store, Save(agent, (record,), F1, (part,)))
    store.close()
    return root


def exercise(root: Path, what: str) -> None:
    """Do everything there is to do to a store with alice's files spoilt."""
    store = Store(root, files=Unsynced())
    try:
        list(store.verify())
        check_alice(store, what)
        assert store.read_ledger("bob") == records_of("bob"), what
        assert store.read_kv("bob", F1) == segments_of("bob"), what
        new, tail = {"turn": 3}, example_segment(19, 25)
        start = store.kv_extent("alice", F1)
        hers = example_segment(start, start + 4)
        outcomes = put(store, Save("alice", (new,), F1, (hers,)), Save("bob", (new,), F1, (tail,)))
        assert "bob" in {save.agent_id for save in outcomes.cached}, what
        assert all(
            save.agent_id == "alice" and isinstance(error, StoreError)
            for save, _, error in outcomes.failed
        ), (what, outcomes.failed)
        assert len(store.agents()) in (2, 3), what
        store.gc()
        if "alice" in {save.agent_id for save in outcomes.cached}:
            assert store.read_kv("alice", F1)[-1] == hers, what
        assert store.read_kv("bob", F1) == (*segments_of("bob"), tail), what
        store.forget("alice")
        assert store.read_ledger("bob") == (*records_of("bob"), new), what
    finally:
        store.close()


def check_alice(store: Store, what: str) -> None:
    with contextlib.suppress(StoreError):
        assert store.read_ledger("alice") == records_of("alice"), what
    whole = segments_of("alice")
    assert store.read_kv("alice", F1) in [whole[:n] for n in range(len(whole) + 1)], what


def run_within_memory(root: Path, what: str) -> None:
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    exercise(root, what)
    assert tracemalloc.get_traced_memory()[1] - before < size + ROOM, what


@pytest.fixture(autouse=True)
def _trace() -> object:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("group", range(GROUPS))
def test_any_damage_to_a_file_is_contained(sound: Path, tmp_path: Path, group: int) -> None:
    for case in CASES[group::GROUPS]:
        root = tmp_path / str(case)
        shutil.copytree(sound, root)
        what = spoil_at_random(root, Random(SEED + case))

        run_within_memory(root, f"case {case}: {what}")

        shutil.rmtree(root)


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_contained(sound: Path, tmp_path: Path, what: str) -> None:
    root = tmp_path / "store"
    shutil.copytree(sound, root)
    HOSTILE[what](root)

    run_within_memory(root, what)


@pytest.mark.parametrize("where", ["agents", f"kv/{F1}"])
def test_a_folder_that_is_a_link_to_another_agents_is_contained(
    sound: Path, tmp_path: Path, where: str
) -> None:
    root = tmp_path / "store"
    shutil.copytree(sound, root)
    [alice], [bob] = ((root / where).glob(f"{agent}-*") for agent in ("alice", "bob"))
    shutil.rmtree(alice)
    alice.symlink_to(bob)

    run_within_memory(root, where)
