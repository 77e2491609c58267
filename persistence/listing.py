"""What a store holds of each agent, for people who look into it."""

from __future__ import annotations

from dataclasses import dataclass

from kvactors.persistence.errors import LedgerUnreadable, NewerFormat
from kvactors.persistence.kv import KvFolders
from kvactors.persistence.ledgers import Ledgers

__all__ = ["StoredAgent", "describe"]


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


def describe(ledgers: Ledgers, kv: KvFolders, encoded: str) -> StoredAgent:
    """Everything known of the agent with this directory name. Raises OSError."""
    path = ledgers.path(encoded)
    agent_id, records, problem, size = encoded, 0, None, 0
    times = [0.0]
    if path.exists():
        size, times = path.stat().st_size, [path.stat().st_mtime]
    kv_bytes, kv_tokens, shared = {}, {}, 0
    for key in kv.keys_of(encoded):
        usage, manifest = kv.disk.get(key), kv.usable(key)
        shared += kv.disk.shared(key)
        agent_id = manifest.agent_id if manifest else agent_id
        kv_bytes[key.fingerprint] = usage.size if usage else 0
        kv_tokens[key.fingerprint] = manifest.tokens if manifest else 0
        times.append(usage.last_used if usage else 0.0)
    try:
        found = ledgers.load(encoded)
        records = found.records if found else 0
    except (LedgerUnreadable, NewerFormat) as error:
        problem = str(error)
    agent_id = ledgers.owner(encoded) or agent_id
    used = max(times)
    return StoredAgent(agent_id, records, size, kv_bytes, kv_tokens, shared, used, problem)
