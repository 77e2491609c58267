"""What is counted by tier: active, hot, warm, cold; in memory and on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from makers import OpenSystem
from store_saves import F1, kv_save, put

from kvactors.actors import Sampling
from kvactors.core.engine.engine import Engine
from kvactors.core.engine.status import in_memory
from kvactors.core.model.load import LoadedModel
from kvactors.core.testing.engines import make_request
from kvactors.core.testing.models import grid
from kvactors.persistence import Save, Store
from kvactors.persistence.testing.doubles import example_segment

WAIT = 60
F2 = "f" * 16
BYTES_PER_TOKEN = 320
ANSWER = Sampling(max_tokens=6)


def fill(store: Store) -> None:
    """alice and bob share their KV, carol has her own, dora none; all have a ledger."""
    shared = example_segment(0, 256, seed=1)
    put(store, kv_save("alice", shared))
    put(store, kv_save("bob", shared), kv_save("carol", example_segment(0, 40, seed=2)))
    put(store, Save("dora", ({"n": 0},), None, ()))


# -- the store -----------------------------------------------------------------------------


def test_the_store_counts_agents_with_kv_and_without(store: Store) -> None:
    fill(store)

    counts = store.counts(F1, ())

    assert (counts.warm_agents, counts.warm_tokens, counts.cold_agents) == (3, 552, 1)
    assert counts.warm_bytes == counts.disk_bytes == store.kv_size
    assert counts.written_bytes == store.bytes_written > store.kv_size
    other = store.counts(F2, ())
    assert (other.warm_agents, other.warm_bytes, other.cold_agents) == (0, 0, 4)
    assert other.disk_bytes == store.kv_size


def test_who_is_in_memory_does_not_count_and_frees_only_what_nobody_shares(store: Store) -> None:
    fill(store)
    whole = store.counts(F1, ()).warm_bytes

    without_alice = store.counts(F1, ["alice"])
    without_both = store.counts(F1, ["alice", "bob", "dora", "a stranger"])

    assert (without_alice.warm_agents, without_alice.warm_tokens) == (2, 296)
    (segment,) = {path.stat().st_size for path in store.root.rglob("seg-0-256-*")}
    assert whole - without_alice.warm_bytes < segment < whole - without_both.warm_bytes
    assert (without_both.warm_agents, without_both.cold_agents) == (1, 0)
    assert store.counts(F1, ()).warm_bytes == whole


def test_counts_kept_while_it_is_used_are_those_of_a_store_opened_anew(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.counts(F1, ()).warm_agents == 0
    fill(store)
    put(store, kv_save("carol", example_segment(40, 300, seed=3)))
    put(store, kv_save("dora", example_segment(0, 9, seed=4), fingerprint=F2))
    store.fork("carol", "emma")
    store.forget("alice")
    store.gc([F2])
    kept = store.counts(F1, ["bob"])
    store.close()

    with_nothing_known = Store(tmp_path)
    found = with_nothing_known.counts(F1, ["bob"])
    with_nothing_known.close()

    assert (kept.warm_agents, kept.warm_tokens, kept.cold_agents) == (2, 600, 1)
    assert (found.warm_agents, found.warm_tokens, found.cold_agents) == (2, 600, 1)
    assert (found.warm_bytes, found.disk_bytes) == (kept.warm_bytes, kept.disk_bytes)


# -- the engine ----------------------------------------------------------------------------


def test_an_agent_is_active_or_hot_never_both(
    make_engine: Callable[..., Engine], load_grid: Callable[..., LoadedModel]
) -> None:
    engine = make_engine(load_grid())
    engine.submit(make_request("alice", [], [3] * 50, ANSWER))
    while engine.busy:
        engine.step()
    alice = engine.stats()
    engine.submit(make_request("bob", [], [5] * 300, ANSWER))
    engine.step()
    both = engine.stats()

    assert (alice["active_agents"], alice["active_tokens"]) == (0, 0)
    assert (alice["hot_agents"], alice["hot_tokens"]) == (1, 55)
    assert alice["hot_bytes"] == 55 * BYTES_PER_TOKEN
    assert (both["active_agents"], both["hot_agents"], both["hot_tokens"]) == (1, 1, 55)
    assert both["active_tokens"] > 0
    assert both["active_bytes"] >= both["active_tokens"] * BYTES_PER_TOKEN
    assert in_memory(engine.memory) == {"alice", "bob"}


# -- the system ----------------------------------------------------------------------------


def test_every_agent_is_in_one_tier(open_system: OpenSystem, tmp_path: Path) -> None:
    names = [f"agent {n}" for n in range(9)]
    first = open_system(grid)
    for number, name in enumerate(names):
        first.spawn(name).ask([1 + number] * 300, sampling=ANSWER).get(timeout=WAIT)
    first.wait_idle(WAIT)
    in_one = first.stats()
    first.stop(timeout=WAIT)
    assert (in_one["hot_agents"], in_one["warm_agents"], in_one["cold_agents"]) == (9, 0, 0)

    second = open_system(grid)
    second.spawn(names[0]).ask([4], sampling=ANSWER).get(timeout=WAIT)
    second.wait_idle(WAIT)
    some = second.stats()

    assert (some["hot_agents"], some["warm_agents"], some["cold_agents"]) == (1, 8, 0)
    assert some["warm_tokens"] == 8 * 305
    assert some["warm_bytes"] < some["disk_bytes"]
    assert some["disk_bytes"] == sum(
        path.stat().st_size for path in (tmp_path / "store/kv").rglob("*") if path.is_file()
    )
    assert some["written_bytes"] > 0


@pytest.mark.parametrize("kept", [True, False], ids=["with a store", "without"])
def test_agents_without_kv_are_cold(open_system: OpenSystem, tmp_path: Path, kept: bool) -> None:
    room = 1_600_000 if not kept else None
    store = tmp_path / "store" if kept else False
    system = open_system(
        grid, store=store, attention="packed", memory_budget=room, max_disk=1 if kept else None
    )
    for name in "abcdefgh":
        system.spawn(name).ask([3] * 600, sampling=ANSWER).get(timeout=WAIT)
    system.spawn("silent")
    system.wait_idle(WAIT)
    if kept:
        system.stop(timeout=WAIT)
        system = open_system(grid, store=store)
    stats = system.stats()

    assert stats["warm_agents"] == stats["warm_bytes"] == 0
    assert stats["cold_agents"] == (8 if kept else stats["evictions"])
    assert stats["hot_agents"] + stats["cold_agents"] == 8
