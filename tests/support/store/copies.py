"""Stores that copy from each other: what is in the one, and how the other gets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from store_saves import F1, RECORD, Unsynced, put

from kvactors.core.cache.segment import Segment
from kvactors.persistence.commit.save import Save
from kvactors.persistence.store.store import Store
from kvactors.persistence.testing.doubles import example_segment

__all__ = ["KEY", "OTHER", "RECORDS", "copy_all", "copy_kv", "filled", "opened", "part"]

KEY, OTHER = b"k" * 32, b"o" * 32
RECORDS = tuple({**RECORD, "n": n} for n in range(5))


def opened(root: Path, key: bytes | None = None, **options: Any) -> Store:
    options.setdefault("files", Unsynced())
    return Store(root, encryption_key=key, **options)


def filled(root: Path, key: bytes | None = None) -> Store:
    """Alice has five records in three frames, and KV of tokens [0, 12)."""
    store = opened(root, key)
    parts = [RECORDS[:1], RECORDS[1:2], RECORDS[2:]]
    for n, records in enumerate(parts):
        put(store, Save("alice", records, F1, (part(n),)))
    return store


def part(n: int, seed: int = 1) -> Segment:
    return example_segment(4 * n, 4 * n + 4, seed=seed)


def copy_all(source: Store, target: Store, agent: str = "alice") -> None:
    target.records.append(agent, 0, source.records.read(agent))
    copy_kv(source, target, agent)


def copy_kv(source: Store, target: Store, agent: str = "alice") -> None:
    have = set(target.pieces.names(agent))
    while (piece := source.pieces.read(agent, have)) is not None:
        assert target.pieces.add(agent, piece)
        have |= set(source.pieces.names_of(piece))
