"""Opening a store: hostile ids, permissions, and what cannot be one."""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
from pathlib import Path

import pytest
from children import run_child
from store_saves import F1, RECORD, kv_save, put

from kvactors.persistence import (
    Files,
    LedgerUnreadable,
    Save,
    Store,
    StoreClosed,
    StoreNotWritable,
)
from kvactors.persistence.files.naming import encode_agent_id
from kvactors.persistence.testing.doubles import FailingFiles, example_segment

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


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.close()

    with pytest.raises(StoreClosed):
        store.read_ledger("a")


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
    tmp_path: Path,
) -> None:
    calls: list[str] = []

    class Full(Files):
        def full_sync(self, path: Path) -> None:
            calls.append("full")

        def fsync(self, path: Path) -> None:
            calls.append("plain")

    class Refused(Full):
        code = errno.ENOTSUP

        def full_sync(self, path: Path) -> None:
            super().full_sync(path)
            raise OSError(self.code, "not here")

    class Broken(Refused):
        code = errno.EIO

    for files in (Refused(), Full()):
        files.sync_dir(tmp_path)
        files.flush(tmp_path)
    for act in (Broken().sync, Broken().sync_dir, Broken().flush):
        with pytest.raises(OSError, match="not here"):
            act(tmp_path)

    assert calls == ["full", "plain", "full", "full", "full", "full", "full", "full"]


@pytest.mark.skipif(not Path("/proc/1").exists(), reason="/proc has what cannot be synced")
def test_a_folder_that_cannot_be_synced_is_let_be_and_a_file_is_an_error() -> None:
    folder = Path(f"/proc/{os.getpid()}")

    Files().sync_dir(folder)
    Files().fsync(folder)
    for sync in (Files().sync, Files().fsync):
        with pytest.raises(OSError, match="Invalid argument"):
            sync(folder / "status")


def test_importing_the_store_loads_neither_mlx_nor_numpy_nor_pykka() -> None:
    child = run_child(
        """
        import sys
        import kvactors.persistence, kvactors.persistence.testing.doubles
        heavy = {"mlx", "mlx_lm", "numpy", "pykka", "kvactors.actors"}
        core = {name for name in sys.modules if name.startswith("kvactors.core.")}
        core -= {f"kvactors.core.{known}" for known in ("errors", "cache", "cache.segment")}
        print(sorted(heavy & set(sys.modules) | core))
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


def test_opening_looks_into_no_agents_folder(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, *(kv_save(f"agent {n}", example_segment(0, 4, seed=n)) for n in range(50)))
    store.close()

    # Python itself tells of every folder that is looked into and every file that is opened.
    child = run_child(
        """
        import sys
        from kvactors.persistence import Store
        hooked = ("os.scandir", "os.listdir", "open")
        sys.addaudithook(lambda event, args: event in hooked and print(event, args[0]))
        Store(sys.argv[1])
        """,
        str(tmp_path),
    )

    told = [line.split(" ", 1) for line in child.stdout.splitlines()]
    looked = {Path(path).name for event, path in told if event != "open"}
    assert looked == {"agents", "kv", F1}, child.stderr
    assert not [path for event, path in told if event == "open" and f"/kv/{F1}/" in path]
    again = Store(tmp_path)
    assert again.kv_extent("agent 7", F1) == 4
    again.close()
