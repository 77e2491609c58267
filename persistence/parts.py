"""What a store is made of, for what works on all of it. Persistence thread only."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvactors.persistence.commit import WriteCounter
from kvactors.persistence.disk_limit import DiskLimit
from kvactors.persistence.kv import KvFolders
from kvactors.persistence.ledgers import Ledgers

__all__ = ["StoreParts"]


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The truth, its cache, the cache's limit, and what was written."""

    ledgers: Ledgers
    kv: KvFolders
    limit: DiskLimit
    counter: WriteCounter = field(default_factory=WriteCounter)
