"""What can go wrong on disk. Each message names the rule broken, the numbers and what to do.
Pure: any thread.

    KvactorsError
    └── StorageError
        ├── StoreLocked          another process has the store open; names its pid
        ├── StoreAlreadyOpen     this process has the store open
        ├── StoreClosed          the store was closed
        ├── StoreNotWritable     the directory cannot be written
        ├── LedgerUnreadable     one agent's ledger is damaged, missing or too short
        ├── NewerFormat          a file was written by a newer version of kvactors
        ├── EncryptionError      the key is no key, or `cryptography` is missing
        │   ├── EncryptionMismatch   an encrypted store without a key, or a plain one with one
        │   └── WrongKey             the store was encrypted with another key
        ├── AgentExists          a fork or an import would overwrite an agent
        ├── AgentNotStored       there is no agent of that id
        ├── RecordGap            copies of records do not continue a ledger
        ├── RecordsPart          a copy of a record is not what the ledger has in its place
        ├── SaveFailed           what was to be saved was not; what went wrong is in `__cause__`
        │   ├── KvGap                segments do not continue what is stored
        │   └── MaxDiskExceeded      KV does not fit under max_disk
        ├── InvalidFingerprint   not 16 to 64 lower-case hex digits
        ├── SegmentUnreadable    one segment or manifest cannot be used (set aside by the store)
        ├── TensorFileUnreadable bytes that are no safetensors container
        ├── BackupFailed         an object store, or what is in it, cannot be used
        ├── ExportRejected       an agent's KV has no form in a format, or the file is there
        └── ImportRejected       a file that cannot become an agent; `field` names what is wrong
            ├── ModelMismatch    its KV belongs to another model
            └── TokensMissing    it does not say which tokens its KV is of

Errors of the operating system (disk full, I/O) stay `OSError`: they are handed to
`failed` of `Store.commit` as they came, so that their errno can be read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from kvactors.core.errors import KvactorsError

__all__ = [
    "AgentExists",
    "AgentNotStored",
    "BackupFailed",
    "EncryptionError",
    "EncryptionMismatch",
    "ExportRejected",
    "ImportRejected",
    "InvalidFingerprint",
    "KvGap",
    "LedgerUnreadable",
    "MaxDiskExceeded",
    "ModelMismatch",
    "NewerFormat",
    "RecordGap",
    "RecordsPart",
    "SaveFailed",
    "SegmentUnreadable",
    "StorageError",
    "StoreAlreadyOpen",
    "StoreClosed",
    "StoreError",
    "StoreLocked",
    "StoreNotWritable",
    "TensorFileUnreadable",
    "TokensMissing",
    "WrongKey",
    "untraced",
]

_E = TypeVar("_E", bound=BaseException)


def untraced(error: _E) -> _E:
    """The error, without the frames in which it and what led to it were raised: they hold what was
    to be written."""
    cause: BaseException | None = error
    while cause is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
    return error


class StorageError(KvactorsError):
    """Something on disk."""


StoreError = StorageError


class SaveFailed(StorageError):
    """A save was not written; what was stored before it is still valid."""


class StoreLocked(StorageError):
    """Another process holds the store; `pid` is its process id, or None if unknown."""

    def __init__(self, root: Path, pid: int | None) -> None:
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__(
            f"store {root} is open in {holder}, and a store belongs to one process: "
            "end that process, or open another directory"
        )
        self.root = root
        self.pid = pid


class StoreAlreadyOpen(StorageError):
    """This process has the store open already."""

    def __init__(self, root: Path) -> None:
        super().__init__(
            f"store {root} is already open in this process: use the object that opened it, "
            "or close that one first (in a notebook: run its `.stop()` or `.close()`, "
            "or restart the kernel)"
        )
        self.root = root


class StoreClosed(StorageError):
    """The store was closed, or belongs to the process that this one was forked from."""

    def __init__(self, root: Path) -> None:
        super().__init__(f"store {root} is closed in this process: open it again")
        self.root = root


class StoreNotWritable(StorageError):
    """The store's directory cannot be made or written; `__cause__` is the OSError."""

    def __init__(self, root: Path, reason: str) -> None:
        super().__init__(
            f"store {root} cannot be written ({reason}): give a directory that you may write, "
            "or make room"
        )
        self.root = root


class LedgerUnreadable(StorageError):
    """One agent's ledger, at `path`, cannot be trusted, for this `reason`. The other agents are not
    touched by it. `hint` ends what is advised."""

    def __init__(self, path: Path | str, reason: str, hint: str = ", or forget the agent") -> None:
        super().__init__(
            f"ledger {path} cannot be read: {reason}. Nothing was changed: restore the file "
            f"from a backup{hint}"
        )
        self.path = path
        self.reason = reason


class KvGap(SaveFailed):
    """Segments leave a gap, overlap what they do not replace, or are not in order."""


class NewerFormat(StorageError):
    """The file at `path` has a newer format `version` than is `known`. It is neither used, renamed
    nor written."""

    def __init__(self, path: Path | str, version: object, known: object) -> None:
        super().__init__(
            f"{path} has format version {version}, and this kvactors reads up to {known}: upgrade "
            "kvactors to use it (it is left as it is), or delete the agent with `kvactors store rm`"
        )
        self.path = path
        self.version = version


class AgentExists(StorageError):
    """A new agent would overwrite one that is there."""

    def __init__(self, agent_id: str, state: str = "exists") -> None:
        super().__init__(
            f"agent {agent_id!r} {state}, and nothing new is made in its place: choose another "
            "id, or forget this agent first"
        )
        self.agent_id = agent_id


class AgentNotStored(StorageError):
    """There is no such agent; `purpose` says what it was wanted for."""

    def __init__(self, agent_id: str, purpose: str = "to fork") -> None:
        super().__init__(
            f"there is no agent {agent_id!r} {purpose}: {agent_id!r} is not stored: check the id "
            "(`known_agents()` has them, or `kvactors agents --store DIR` when nothing runs)"
        )
        self.agent_id = agent_id


class RecordGap(StorageError):
    """Copies of records from the `start`-th on do not continue the ledger of `agent_id`, which has
    `have`."""

    def __init__(self, agent_id: str, have: int, start: int) -> None:
        super().__init__(
            f"records from the {start}-th on do not continue the ledger of {agent_id!r}, which has "
            f"{have}: copy them from there"
        )
        self.have = have


class RecordsPart(StorageError):
    """A ledger and copies of another one are not the same in record `place`."""

    def __init__(self, agent_id: str, place: int) -> None:
        super().__init__(
            f"record {place} of {agent_id!r} says something else here than its copy: set the "
            "records from there on aside before others are stored in their place"
        )
        self.place = place


class MaxDiskExceeded(SaveFailed):
    """`needed` more bytes of KV do not fit under `limit`, max_disk: `held` cannot be evicted."""

    def __init__(self, needed: int, held: int, limit: int) -> None:
        super().__init__(
            f"{needed} more bytes of KV do not fit: {held} bytes cannot be evicted (being written, "
            f"or of a newer version), and max_disk is {limit} bytes: raise max_disk, or forget "
            "agents"
        )
        self.needed = needed
        self.held = held
        self.limit = limit


class EncryptionError(StorageError):
    """The encryption key cannot be used."""


class EncryptionMismatch(EncryptionError):
    """An encrypted store was opened without a key, or a plain one with a key."""

    def __init__(self, root: Path, *, encrypted: bool) -> None:
        super().__init__(
            f"store {root} is encrypted: pass its encryption_key"
            if encrypted
            else f"store {root} is not encrypted: open it without encryption_key, "
            "or keep encrypted agents in another directory"
        )
        self.root = root


class WrongKey(EncryptionError):
    """The store was encrypted with another key."""

    def __init__(self, root: Path) -> None:
        super().__init__(
            f"store {root} was encrypted with another key than the encryption_key given: "
            "pass that one (without it nothing of the store can be read)"
        )
        self.root = root


class InvalidFingerprint(StorageError):
    """A fingerprint names a directory, so it must be plain hex."""

    def __init__(self, fingerprint: object) -> None:
        super().__init__(
            f"fingerprint {fingerprint!r} is not 16 to 64 lower-case hex digits: "
            "pass the hex digest of what identifies the model"
        )


class SegmentUnreadable(StorageError):
    """A segment or manifest cannot be used; the store sets the file aside."""


class TensorFileUnreadable(StorageError):
    """Bytes that are no safetensors container; the message says where they stop being one."""


class BackupFailed(StorageError):
    """An object store cannot be reached, or what is in it is no backup that can be used."""


class ExportRejected(StorageError):
    """An agent cannot be written in this format, or not to this file. Nothing was written."""


class ImportRejected(StorageError):
    """A file cannot become an agent. Nothing was stored; `field` names what is wrong."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field


class ModelMismatch(ImportRejected):
    """The KV of a file was not computed by the loaded model, or not with its settings."""


class TokensMissing(ImportRejected):
    """A file has KV but not the token ids that it is of."""
