"""What a store is made of, for what works on all of it. Persistence thread only."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvactors.persistence.commit.steps import WriteCounter
from kvactors.persistence.kv.disk_limit import DiskLimit
from kvactors.persistence.kv.folders import KvFolders
from kvactors.persistence.ledger.folder import Ledgers

__all__ = ["StoreParts"]


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The truth, its cache, the cache's limit, and what was written."""

    ledgers: Ledgers
    kv: KvFolders
    limit: DiskLimit
    counter: WriteCounter = field(default_factory=WriteCounter)
