"""Folders of a store that are links: on another disk."""

from pathlib import Path

import pytest
from store_saves import F1, kv_save, put

from kvactors.persistence import Store, StoreNotWritable
from kvactors.persistence.testing.doubles import example_segment


@pytest.mark.parametrize("folder", ["agents", "kv"])
def test_a_folder_that_was_moved_to_another_disk_and_linked_is_written_as_before(
    tmp_path: Path, folder: str
) -> None:
    Store(tmp_path / "s").close()
    (tmp_path / "s" / folder).rename(tmp_path / "disk")
    (tmp_path / "s" / folder).symlink_to(tmp_path / "disk")

    store = Store(tmp_path / "s")
    outcomes = put(store, kv_save("a", example_segment(0, 8)))

    assert not outcomes.failed
    assert store.kv_extent("a", F1) == 8
    assert any((tmp_path / "disk").iterdir())
    store.close()
    (tmp_path / "disk").rename(tmp_path / "unplugged")
    with pytest.raises(StoreNotWritable, match="is not a directory"):
        Store(tmp_path / "s")
