"""What a store holds of each agent, for people who look into it. Persistence thread only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kvactors.persistence.errors import LedgerUnreadable, NewerFormat
from kvactors.persistence.files.naming import check_fingerprint, encode_agent_id
from kvactors.persistence.kv.disk_usage import Key
from kvactors.persistence.kv.folders import KvFolders
from kvactors.persistence.ledger.folder import Ledgers
from kvactors.persistence.store.parts import StoreParts

__all__ = ["Glance", "Listing", "StoreCounts", "StoredAgent", "count", "describe"]


@dataclass(frozen=True, slots=True)
class StoredAgent:
    """What the store knows about an agent. Sizes in bytes."""

    agent_id: str
    """The id; its directory's name where neither ledger nor manifest can tell."""
    records: int
    ledger_bytes: int
    kv_bytes: dict[str, int]
    """By fingerprint; with the manifest and what was set aside."""
    kv_tokens: dict[str, int]
    """By fingerprint."""
    shared_bytes: int
    """Of its KV: files that other agents hold too."""
    last_used: float
    """Epoch seconds of the newest file."""
    problem: str | None
    """Why the ledger cannot be read."""


@dataclass(frozen=True, slots=True)
class Glance:
    """What is known of an agent without reading a file of it. Sizes in bytes."""

    folder: str
    """Its directory's name: the encoded id."""
    ledger_bytes: int
    """0 without a ledger."""
    kv_tokens: int
    """Under the model that was asked for."""
    kv_bytes: int
    """Of these; what several share is counted for each."""
    last_used: float
    """Epoch seconds of the newest file."""


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """What a store holds of the agents that are not in memory, and in all."""

    warm_agents: int = 0
    """Those with KV under the model."""
    warm_tokens: int = 0
    """Whose KV that is; what several share is counted for each."""
    warm_bytes: int = 0
    """Of that KV; what several share counts once, what an agent in memory has too does not."""
    cold_agents: int = 0
    """Those with a ledger only."""
    disk_bytes: int = 0
    """Of all KV, under any model: what max_disk bounds."""
    written_bytes: int = 0
    """Since the store was opened."""


class Listing:
    """What `store` has, at a glance: `folders` lists the directories of all agents, `touch` sweeps
    one before its files are read. Each of them raises StoreClosed where the store is."""

    def __init__(
        self, store: StoreParts, folders: Callable[[], list[str]], touch: Callable[[str], str]
    ) -> None:
        self._store = store
        self._folders = folders
        self._touch = touch

    def glances(self, fingerprint: str, agent_ids: Iterable[str] = ()) -> list[Glance]:
        """Of these agents, or of all, under a model's fingerprint. Raises InvalidFingerprint,
        OSError."""
        check_fingerprint(fingerprint)
        folders = self._folders()
        asked = set(map(encode_agent_id, agent_ids)) or folders
        return [self._glance(fingerprint, folder) for folder in folders if folder in asked]

    def read(self, folder: str) -> tuple[str, tuple[dict[str, Any], ...]]:
        """Whose a folder is, and the records of its ledger. Raises LedgerUnreadable, NewerFormat,
        OSError."""
        ledgers, encoded = self._store.ledgers, self._touch(folder)
        found = ledgers.load(encoded)
        if found is None:
            return folder, ()
        return found.agent_id, ledgers.records(found, ledgers.path(encoded))

    def _glance(self, fingerprint: str, folder: str) -> Glance:
        ledger = self._store.ledgers.path(folder)
        usage = self._store.kv.disk.get(Key(folder, fingerprint))
        size, used = 0, 0.0
        with suppress(OSError):
            status = ledger.stat()
            size, used = status.st_size, status.st_mtime
        if usage is None:
            return Glance(folder, size, 0, 0, used)
        return Glance(folder, size, usage.tokens, usage.size, max(used, usage.last_used))


def count(store: StoreParts, fingerprint: str, in_memory: Set[str]) -> StoreCounts:
    """Count what `store` has, under `fingerprint` and in all; `in_memory` are encoded ids. Raises
    OSError."""
    ledgers, kv = store.ledgers, store.kv
    warm = kv.disk.without(fingerprint, in_memory)
    known = len(ledgers.names) - len(ledgers.names & in_memory)
    return StoreCounts(
        warm_agents=warm.agents,
        warm_tokens=warm.tokens,
        warm_bytes=warm.size,
        # KV without a ledger, of an agent half forgotten, must not make this negative.
        cold_agents=max(0, known - warm.agents),
        disk_bytes=kv.disk.size,
        written_bytes=store.counter.written,
    )


def describe(ledgers: Ledgers, kv: KvFolders, encoded: str) -> StoredAgent:
    """Everything that `ledgers` and `kv` know of the agent whose directory is named `encoded`."""
    path = ledgers.path(encoded)
    agent_id, records, problem, size = encoded, 0, None, 0
    times = [0.0]
    with suppress(OSError):
        size, times = path.stat().st_size, [path.stat().st_mtime]
    kv_bytes, kv_tokens, shared = {}, {}, 0
    for key in kv.keys_of(encoded):
        usage, manifest = kv.disk.get(key), None
        # One that the disk does not give is the ledger's problem too, below.
        with suppress(OSError):
            manifest = kv.usable(key)
        shared += kv.disk.shared(key)
        agent_id = manifest.agent_id if manifest else agent_id
        kv_bytes[key.fingerprint] = usage.size if usage else 0
        kv_tokens[key.fingerprint] = manifest.tokens if manifest else 0
        times.append(usage.last_used if usage else 0.0)
    try:
        found = ledgers.load(encoded)
        records = found.records if found else 0
    except (LedgerUnreadable, NewerFormat, OSError) as error:
        problem = str(error)
    agent_id = ledgers.owner(encoded) or agent_id
    used = max(times)
    return StoredAgent(agent_id, records, size, kv_bytes, kv_tokens, shared, used, problem)
