"""What goes wrong once, or for one agent alone, costs no more than that."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from seeded import bug, seeded
from store_saves import F1, RECORD, kv_save, put

from kvactors.persistence import Save, Store
from kvactors.persistence.formats.archive import export_archive, import_archive
from kvactors.persistence.kv import folders
from kvactors.persistence.testing.doubles import FailingFiles, WrappedFiles, example_segment

SEGMENTS = tuple(example_segment(256 * n, 256 * (n + 1)) for n in range(4))


class Noted(WrappedFiles):
    """Files that keep what was done to them."""

    def __init__(self) -> None:
        super().__init__(None)
        self.done = list[tuple[str, Path]]()

    def around(self, operation: Any, act: Any) -> None:
        self.done.append((operation.name, operation.path))
        act()


def test_what_cannot_be_read_once_is_there_the_next_time(store: Store) -> None:
    put(store, Save("alice", (RECORD,), F1, SEGMENTS))
    left = [1]

    @bug(folders, "read_segment")
    def too_many_files_are_open_once(true: Any) -> Any:
        def read(*given: Any) -> Any:
            if not left[0]:
                left[0] = -1
                raise OSError(errno.EMFILE, "too many open files")
            left[0] -= 1
            return true(*given)

        return read

    with seeded(too_many_files_are_open_once):
        assert store.read_kv("alice", F1) == SEGMENTS[:1]

    assert store.read_kv("alice", F1) == SEGMENTS


def test_kv_that_cannot_be_deleted_holds_up_nobody(tmp_path: Path) -> None:
    store = Store(tmp_path, max_disk=10_000)
    for seed, name in enumerate("abc"):
        put(store, kv_save(name, example_segment(0, 256, seed=seed)))
    (folder,) = (tmp_path / "kv" / F1).glob("a-*")
    (folder / "@eaDir" / "somebody's").mkdir(parents=True)

    outcomes = put(store, kv_save("d", example_segment(0, 256, seed=3)))

    assert not outcomes.failed
    assert [store.kv_extent(name, F1) for name in "bcd"] == [0, 256, 256]
    store.close()


def test_a_folder_that_is_made_again_is_durable_again(tmp_path: Path) -> None:
    noted = Noted()
    files = FailingFiles(noted, name="write*", path="*manifest*")
    store = Store(tmp_path, files=files)
    assert put(store, kv_save("alice", SEGMENTS[0])).failed
    assert not list((tmp_path / "kv").rglob("seg-*"))
    files.armed = False
    noted.done.clear()

    assert not put(store, kv_save("alice", SEGMENTS[0])).failed

    assert ("fsync", tmp_path / "kv" / F1) in noted.done
    store.close()


def test_an_import_that_ends_in_its_first_segment_leaves_nothing(
    store: Store, tmp_path: Path
) -> None:
    put(store, Save("alice", (RECORD,), F1, SEGMENTS))
    export_archive(store, "alice", tmp_path / "alice.kva")
    files = FailingFiles(name="write*", path="*seg-*")
    other = Store(tmp_path / "other", files=files)

    with pytest.raises(OSError, match="No space"):
        import_archive(other, tmp_path / "alice.kva", "bob")

    assert not list((tmp_path / "other" / "kv").rglob("*seg*"))
    files.armed = False
    import_archive(other, tmp_path / "alice.kva", "bob")
    assert other.read_kv("bob", F1) == SEGMENTS
    other.close()
