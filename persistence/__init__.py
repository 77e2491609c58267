"""What agents remember, on disk: ledgers (truth) and KV segments (a cache of it)."""

from __future__ import annotations

from kvactors.core.cache.segment import RawTensor, Segment
from kvactors.persistence.commit.save import Save
from kvactors.persistence.errors import (
    AgentExists,
    AgentNotStored,
    EncryptionError,
    EncryptionMismatch,
    InvalidFingerprint,
    KvGap,
    LedgerUnreadable,
    MaxDiskExceeded,
    NewerFormat,
    StoreAlreadyOpen,
    StoreClosed,
    StoreError,
    StoreLocked,
    StoreNotWritable,
    WrongKey,
)
from kvactors.persistence.files.atomic import Files
from kvactors.persistence.store.store import DEFAULT_MAX_DISK, Store, StoredAgent
from kvactors.persistence.store.verify import Problem

__all__ = [
    "DEFAULT_MAX_DISK",
    "AgentExists",
    "AgentNotStored",
    "EncryptionError",
    "EncryptionMismatch",
    "Files",
    "InvalidFingerprint",
    "KvGap",
    "LedgerUnreadable",
    "MaxDiskExceeded",
    "NewerFormat",
    "Problem",
    "RawTensor",
    "Save",
    "Segment",
    "Store",
    "StoreAlreadyOpen",
    "StoreClosed",
    "StoreError",
    "StoreLocked",
    "StoreNotWritable",
    "StoredAgent",
    "WrongKey",
]
