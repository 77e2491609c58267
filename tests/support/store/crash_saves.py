"""What tests of a store that is killed or cannot write save, and what must then be there."""

from __future__ import annotations

from pathlib import Path

from store_saves import Unsynced, put

from kvactors.persistence import Save, Segment, Store
from kvactors.persistence.kv.manifest import read_manifest
from kvactors.persistence.testing.doubles import (
    CountingFiles,
    example_segment,
)

__all__ = [
    "FIRST",
    "OPERATIONS",
    "SECOND",
    "F",
    "check",
    "heal",
    "kv_after",
    "leftovers",
    "operations_of",
    "save",
]

F = "ef" * 16
# Of a new store and both commits: a kill, or a loss of power, may come at each of them.
OPERATIONS = 118


def save(agent: str, turn: int, start: int, end: int) -> Save:
    return Save(agent, ({"turn": turn},), F, (example_segment(start, end, seed=turn),))


# A new agent, one that continues, one that supersedes, and two saves of one agent.
FIRST = (save("a", 1, 0, 4), save("b", 1, 0, 4), save("c", 1, 0, 4))
SECOND = (save("a", 2, 4, 6), save("b", 2, 0, 6), save("new", 1, 0, 3), save("new", 2, 3, 5))


def kv_after(saves: list[Save]) -> tuple[Segment, ...]:
    kept: list[Segment] = []
    for item in saves:
        first = item.segments[0].start
        kept = [segment for segment in kept if segment.start < first] + list(item.segments)
    return tuple(kept)


def leftovers(root: Path) -> list[Path]:
    """Temporary files, empty folders, and segments beyond what the manifests name."""
    found = [path for path in root.rglob("*") if path.name.endswith((".tmp", ".bad"))]
    for path in root.rglob("seg-*"):
        manifest = read_manifest(path.with_name("manifest.msgpack"))
        if manifest is None or path.name not in {entry.file for entry in manifest.segments}:
            found.append(path)
    return found + [
        path for path in root.rglob("*")
        if path.is_dir() and path.parent != root and not any(path.iterdir())
    ]  # fmt: skip


def operations_of(folder: Path) -> int:
    """How many operations the SECOND commit takes."""
    files = CountingFiles(Unsynced())
    store = Store(folder, files=files)
    put(store, *FIRST)
    before = len(files.operations)
    put(store, *SECOND)
    store.close()
    return len(files.operations) - before


def check(store: Store, durable: list[Save], cached: list[Save]) -> None:
    """All that was reported is there, and what is there was asked for."""
    for agent in {item.agent_id for item in (*FIRST, *SECOND)}:
        records = store.read_ledger(agent) or ()
        asked = [item for item in (*FIRST, *SECOND) if item.agent_id == agent]
        promised = [item for item in durable if item.agent_id == agent]
        assert len(records) >= len(promised)
        assert records == tuple(item.records[0] for item in asked[: len(records)])
        warm = [item for item in cached if item.agent_id == agent]
        states = [kv_after(asked[:n]) for n in range(len(warm), len(records) + 1)]
        assert store.read_kv(agent, F) in states


def heal(store: Store) -> None:
    """With room again, every agent can be saved."""
    later = tuple(save(agent, 9, 0, 9) for agent in ("a", "b", "c", "new"))
    outcomes = put(store, *later)
    assert not outcomes.failed
    assert len(outcomes.cached) == 4
    for item in later:
        assert (store.read_ledger(item.agent_id) or ())[-1] == item.records[0]
        assert store.read_kv(item.agent_id, F) == item.segments
