"""What can go wrong on disk, under the one root of kvactors' errors.

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
        ├── ExportRejected       an agent has no form in a format, or the file is there
        └── ImportRejected       a file that cannot become an agent; `field` says what is wrong
            ├── ModelMismatch    its KV belongs to another model
            └── TokensMissing    it does not say which tokens its KV is of

`kvactors.persistence` imports nothing of the rest, so it raises errors of its own; `public`
turns them into these.
"""

from kvactors.core.errors import KvactorsError
from kvactors.persistence import errors as store

__all__ = [
    "AgentExists",
    "AgentNotStored",
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
]


class StorageError(KvactorsError):
    """Something on disk."""


class StoreLocked(StorageError):
    """Another process has the store open."""


class StoreAlreadyOpen(StorageError):
    """This process has the store open already."""


class StoreNotWritable(StorageError):
    """The store's directory cannot be written."""


class LedgerUnreadable(StorageError):
    """An agent's ledger is damaged; other agents are not concerned."""


class NewerFormat(StorageError):
    """A file was written by a newer version; it is neither used nor touched."""


class EncryptionError(StorageError):
    """The store's encryption and the key given do not fit."""


class AgentExists(StorageError):
    """An agent of that id is stored already."""


class AgentNotStored(StorageError):
    """No agent of that id is stored."""


class SaveQueueFull(StorageError):
    """No turn is taken until the disk has written what waits for it."""


class SaveFailed(StorageError):
    """A turn was not written; what was stored before it is still valid."""


class ExportRejected(StorageError):
    """An agent cannot be written in this format, or not to this file. Nothing was written."""


class ImportRejected(StorageError):
    """A file cannot become an agent. Nothing was stored; `field` names what is wrong."""

    field = ""


class ModelMismatch(ImportRejected):
    """The KV of a file was not computed by the loaded model, or not with its settings."""


class TokensMissing(ImportRejected):
    """A file has KV but not the token ids that it is of."""


_PUBLIC: dict[type[BaseException], type[StorageError]] = {
    store.StoreLocked: StoreLocked,
    store.StoreAlreadyOpen: StoreAlreadyOpen,
    store.StoreNotWritable: StoreNotWritable,
    store.LedgerUnreadable: LedgerUnreadable,
    store.NewerFormat: NewerFormat,
    store.EncryptionError: EncryptionError,
    store.EncryptionMismatch: EncryptionError,
    store.WrongKey: EncryptionError,
    store.AgentExists: AgentExists,
    store.AgentNotStored: AgentNotStored,
    store.ExportRejected: ExportRejected,
    store.ImportRejected: ImportRejected,
    store.ModelMismatch: ModelMismatch,
    store.TokensMissing: TokensMissing,
}


def public(error: BaseException) -> KvactorsError:
    """The public form of an error of the store, with the original as its cause."""
    if isinstance(error, KvactorsError):
        return error
    kind = _PUBLIC.get(type(error), SaveFailed)
    text = str(error) if isinstance(error, store.StoreError) else f"{type(error).__name__}: {error}"
    raised = kind(text)
    if isinstance(raised, ImportRejected) and isinstance(error, store.ImportRejected):
        raised.field = error.field
    raised.__cause__ = error
    return raised
