"""An agent's files as they stand, for a copy of the store elsewhere. Persistence thread only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvactors.persistence.files.naming import MANIFEST_NAME
from kvactors.persistence.files.reading import read_file
from kvactors.persistence.kv.disk_usage import Key
from kvactors.persistence.store.parts import StoreParts

__all__ = ["AgentFiles", "HeldFiles", "HeldKV"]


@dataclass(frozen=True, slots=True)
class HeldKV:
    """KV under one fingerprint: the manifest's bytes, and the files that it names, which never
    change."""

    fingerprint: str
    manifest: bytes
    segments: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class HeldFiles:
    """Of one agent: the name of its folders, the bytes of its ledger, its KV."""

    encoded: str
    ledger: bytes
    kv: tuple[HeldKV, ...]


class AgentFiles:
    """Those of a store made of `parts`; `touch` sweeps an agent's folders before they are read."""

    def __init__(self, parts: StoreParts, touch: Callable[[str], str]) -> None:
        self._parts = parts
        self._touch = touch

    def of(self, encoded: str) -> HeldFiles | None:
        """The files of the agent whose folders are named `encoded`, as its last commit left them;
        None if it has no ledger. Raises LedgerUnreadable, NewerFormat, OSError."""
        ledgers, kv = self._parts.ledgers, self._parts.kv
        found = ledgers.load(self._touch(encoded))
        if found is None:
            return None
        ledger = read_file(ledgers.path(encoded), found.length)
        held = (self._kv(key) for key in kv.keys_of(encoded))
        return HeldFiles(encoded, ledger, tuple(one for one in held if one is not None))

    def _kv(self, key: Key) -> HeldKV | None:
        kv = self._parts.kv
        manifest, folder = kv.usable(key), kv.folder(key)
        if manifest is None:
            return None
        segments = tuple(folder / one.file for one in manifest.segments)
        return HeldKV(key.fingerprint, read_file(folder / MANIFEST_NAME), segments)
