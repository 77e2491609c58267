"""What can go wrong on disk, as `kvactors.persistence.errors` has it, and what saves wait for.

KvactorsError
└── StorageError
    ├── StoreLocked          another process has the store open; names its pid
    ├── StoreAlreadyOpen     this process has it open already
    ├── StoreNotWritable     the directory cannot be written
    ├── LedgerUnreadable     one agent's ledger is damaged
    ├── NewerFormat          a file was written by a newer version of kvactors
    ├── EncryptionError      a key is missing, wrong, or one too many
    ├── AgentExists          an agent of that id is stored already
    ├── AgentNotStored       no agent of that id is stored
    ├── SaveQueueFull        too much waits for a disk that is slow or fails
    ├── SaveFailed           a turn could not be written; the reason is in `__cause__`
    ├── BackupFailed         an object store, or what is in it, cannot be used
    ├── ExportRejected       an agent has no form in a format, or the file is there
    └── ImportRejected       a file that cannot become an agent; `field` says what is wrong
        ├── ModelMismatch    its KV belongs to another model
        └── TokensMissing    it does not say which tokens its KV is of
"""

from collections.abc import Iterator
from contextlib import contextmanager

from kvactors.core.errors import KvactorsError
from kvactors.persistence.errors import (
    AgentExists,
    AgentNotStored,
    BackupFailed,
    EncryptionError,
    ExportRejected,
    ImportRejected,
    LedgerUnreadable,
    ModelMismatch,
    NewerFormat,
    SaveFailed,
    StorageError,
    StoreAlreadyOpen,
    StoreLocked,
    StoreNotWritable,
    TokensMissing,
)

__all__ = [
    "AgentExists",
    "AgentNotStored",
    "BackupFailed",
    "EncryptionError",
    "ExportRejected",
    "ImportRejected",
    "LedgerUnreadable",
    "ModelMismatch",
    "NewerFormat",
    "SaveFailed",
    "SaveQueueFull",
    "StorageError",
    "StoreAlreadyOpen",
    "StoreLocked",
    "StoreNotWritable",
    "TokensMissing",
    "public",
    "public_errors",
]


class SaveQueueFull(StorageError):
    """No turn is taken until the disk has written what waits for it."""


def public(error: BaseException) -> KvactorsError:
    """The error itself, or SaveFailed for one that is not of kvactors, with it as the cause."""
    if isinstance(error, KvactorsError):
        return error
    failed = SaveFailed(f"{type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed


@contextmanager
def public_errors() -> Iterator[None]:
    """Work with the store, whose errors reach users as `public` has them."""
    try:
        yield
    except KvactorsError:
        raise
    except Exception as error:
        raise public(error) from error
