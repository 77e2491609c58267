"""The actors: AgentSystem and what a user of it needs. Imports no MLX until a model loads."""

from kvactors.actors.dispatcher import MailboxFull
from kvactors.actors.errors import (
    AgentExists,
    AgentNotStored,
    EncryptionError,
    LedgerUnreadable,
    NewerFormat,
    SaveFailed,
    StorageError,
    StoreAlreadyOpen,
    StoreLocked,
    StoreNotWritable,
)
from kvactors.actors.handle import Agent, TranscriptView
from kvactors.actors.reply import Reply, Timing, Usage
from kvactors.actors.system import AgentSystem, default_store
from kvactors.core.errors import (
    BlockingCall,
    ContextExceeded,
    EngineDied,
    InvalidInput,
    KvactorsError,
    MemoryExceeded,
    ModelError,
    SystemStopped,
    TurnFailed,
    TurnTimeout,
)
from kvactors.core.sampling import Sampling

__all__ = [
    "Agent",
    "AgentExists",
    "AgentNotStored",
    "AgentSystem",
    "BlockingCall",
    "ContextExceeded",
    "EncryptionError",
    "EngineDied",
    "InvalidInput",
    "KvactorsError",
    "LedgerUnreadable",
    "MailboxFull",
    "MemoryExceeded",
    "ModelError",
    "NewerFormat",
    "Reply",
    "Sampling",
    "SaveFailed",
    "StorageError",
    "StoreAlreadyOpen",
    "StoreLocked",
    "StoreNotWritable",
    "SystemStopped",
    "Timing",
    "TranscriptView",
    "TurnFailed",
    "TurnTimeout",
    "Usage",
    "default_store",
]
