"""How often ledgers are read to be counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from copies import filled
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
