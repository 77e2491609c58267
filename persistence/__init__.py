"""What agents remember, on disk: ledgers (truth) and KV segments (a cache of it)."""

from __future__ import annotations

from kvactors.persistence.atomic import Files
from kvactors.persistence.errors import (
    DiskCapExceeded,
    InvalidFingerprint,
    KvGap,
    LedgerUnreadable,
    StoreAlreadyOpen,
    StoreClosed,
    StoreError,
    StoreLocked,
    StoreNotWritable,
)
from kvactors.persistence.segment import RawTensor, Segment
from kvactors.persistence.store import DEFAULT_CAP, Save, Store, StoredAgent

__all__ = [
    "DEFAULT_CAP",
    "DiskCapExceeded",
    "Files",
    "InvalidFingerprint",
    "KvGap",
    "LedgerUnreadable",
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
]
