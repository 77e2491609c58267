"""Ledgers that are counted: how often they are read, and what those cost that cannot be."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from copies import filled, opened
from seeded import bug, seeded
from store_saves import put

from kvactors.persistence import Save
from kvactors.persistence.ledger.folder import Ledgers


def test_ledgers_are_read_once_to_be_counted_however_often(tmp_path: Path) -> None:
    store, read = filled(tmp_path), list[str]()
    put(store, Save("bob", ({"n": 1},), None, ()))
    assert store.records.counts() == {"alice": 5, "bob": 1}

    @bug(Ledgers, "load")
    def counted(load: Any) -> Any:
        def loaded(self: Ledgers, encoded: str) -> Any:
            read.append(encoded)
            return load(self, encoded)

        return loaded

    with seeded(counted):
        put(store, Save("bob", ({"n": 2},), None, ()))
        store.forget("alice")
        assert store.records.counts() == {"bob": 2}

    assert read == []


def refused_once(root: Path, code: int) -> tuple[Any, dict[str, int]]:
    """What is counted while the disk refuses to read alice's ledger, and afterwards."""
    store = filled(root)
    put(store, Save("bob", ({"n": 1},), None, ()))
    store.close()
    store = opened(root)

    @bug(Ledgers, "load")
    def refused(load: Any) -> Any:
        def loaded(self: Ledgers, encoded: str) -> Any:
            if encoded.startswith("alice-"):
                raise OSError(code, os.strerror(code))
            return load(self, encoded)

        return loaded

    with seeded(refused):
        try:
            found: Any = store.records.counts()
        except OSError as error:
            found = error.errno
    return found, store.records.counts()


def test_a_ledger_that_the_disk_does_not_give_costs_the_others_nothing_and_is_asked_for_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert refused_once(tmp_path, errno.EIO) == ({"bob": 1}, {"alice": 5, "bob": 1})
    assert "alice-" in caplog.text


def test_too_many_open_files_are_no_single_ledgers_matter(tmp_path: Path) -> None:
    assert refused_once(tmp_path, errno.EMFILE) == (errno.EMFILE, {"alice": 5, "bob": 1})
