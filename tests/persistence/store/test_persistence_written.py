"""What lives cost the disk: bytes written against bytes kept, and flushes of its cache."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from store_saves import F1, Unsynced, put

from kvactors.core.engine.hot_cache import ranges_to_save
from kvactors.persistence import Save, Store
from kvactors.persistence.testing.doubles import example_segment

TOKEN_BYTES = 512
TURNS = 100
# Measured, in all: 2.02, 1.97 and 1.80 times what is kept, for 20, 50 and 120 tokens. What
# exceeds 2.00 is the ledger, the headers and the manifests.
PER_TURN = 1024


@pytest.mark.parametrize("tokens", [20, 50, 120])
def test_a_hundred_turns_write_at_most_twice_what_is_kept(tmp_path: Path, tokens: int) -> None:
    store = Store(tmp_path, files=Unsynced())
    for turn in range(TURNS):
        saved = turn * tokens
        ranges = ranges_to_save(saved, saved + tokens)
        segments = tuple(example_segment(*part, token_bytes=TOKEN_BYTES) for part in ranges)
        assert not put(store, Save("a", ({"ids": bytes(4 * tokens)},), F1, segments)).failed

    final = TURNS * tokens * TOKEN_BYTES
    on_disk = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    per_turn = (store.bytes_written - 2 * final) / TURNS

    assert store.kv_extent("a", F1) == TURNS * tokens
    assert store.bytes_written <= 2 * final + PER_TURN * TURNS, per_turn
    assert on_disk < 1.05 * final + 64 * 1024
    store.close()


class Flushed(Unsynced):
    """A drive with a cache: counts what flushes it, as F_FULLFSYNC does on macOS."""

    flushes = 0

    def full_sync(self, path: Path) -> None:
        self.flushes += 1


def flushes_of_turns(root: Path, agents: int) -> list[int]:
    """How often the drive's cache is flushed by each of three turns that so many agents have
    saved together."""
    store, counts = Store(root, files=(drive := Flushed())), [drive.flushes]
    for turn in range(3):
        saves = [
            Save(f"{n}", ({},), F1, (example_segment(turn, turn + 1, seed=n),))
            for n in range(agents)
        ]
        assert len(put(store, *saves).cached) == agents
        counts.append(drive.flushes)
    store.close()
    return [after - before for before, after in pairwise(counts)]


def test_a_group_flushes_the_drive_as_often_as_one_agent(tmp_path: Path) -> None:
    alone, together = (flushes_of_turns(tmp_path / f"{n}", n) for n in (1, 16))

    assert alone == together == [6, 5, 5]
