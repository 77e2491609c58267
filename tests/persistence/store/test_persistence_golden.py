"""Version 1 on disk: `golden/store-v1` was written once and is never changed.

A test that fails here means that memories in the field would be lost: read the old
version too, or give the new one another number. Never regenerate the files.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kvactors.persistence import Save, Store
from kvactors.persistence.testing.doubles import Outcomes, example_segment

GOLDEN = Path(__file__).parents[2] / "golden" / "store-v1"
F = "0123456789abcdef"
ALICE = (
    {"role": "system", "text": "You answer from memory.", "ids": [1, 2, 3]},
    {"role": "user", "text": "My cat is called Biscuit. 🐈", "ids": [70000], "bytes": b"\x00\xff"},
    {"nested": {"a": [None, True, -1, 2.5]}, "surrogate": "\ud800"},
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "store"))


def test_a_store_of_version_1_still_reads(root: Path) -> None:
    store = Store(root)

    assert store.read_ledger("alice") == ALICE
    assert store.read_ledger("../ünï\udc80") == ({"text": "hello"},)
    assert store.read_kv("alice", F) == (example_segment(0, 2), example_segment(2, 3, seed=7))
    assert [agent.problem for agent in store.agents()] == [None, None]
    store.close()


def test_a_store_of_version_1_can_be_continued(root: Path) -> None:
    store = Store(root)
    outcomes = Outcomes()

    outcomes.commit(store, Save("alice", ({"new": 1},), F, (example_segment(3, 5),)))

    assert len(outcomes.cached) == 1
    assert store.read_ledger("alice") == (*ALICE, {"new": 1})
    assert store.kv_extent("alice", F) == 5
    store.close()


def test_this_version_writes_what_version_1_wrote(tmp_path: Path) -> None:
    write(tmp_path)

    written = {path.relative_to(tmp_path): path.read_bytes() for path in files(tmp_path)}
    golden = {path.relative_to(GOLDEN): path.read_bytes() for path in files(GOLDEN)}
    assert written == golden


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and path.name != "store.lock"]


def write(root: Path) -> None:
    """How the golden files were made."""
    store = Store(root)
    outcomes = Outcomes()
    outcomes.commit(
        store,
        Save("alice", ALICE[:2], F, (example_segment(0, 2),)),
        Save("alice", ALICE[2:], F, (example_segment(2, 3, seed=7),)),
        Save("../ünï\udc80", ({"text": "hello"},), None, ()),
    )
    store.close()
    assert not outcomes.failed
