"""The actors: AgentSystem and what a user of it needs. Imports no MLX until a model loads."""

from kvactors.actors.behaviour import AgentBehaviour
from kvactors.actors.errors import (
    AgentExists,
    AgentNotStored,
    EncryptionError,
    ExportRejected,
    ImportRejected,
    LedgerUnreadable,
    ModelMismatch,
    NewerFormat,
    SaveFailed,
    SaveQueueFull,
    StorageError,
    StoreAlreadyOpen,
    StoreLocked,
    StoreNotWritable,
    TokensMissing,
)
from kvactors.actors.handle import Agent, TranscriptView
from kvactors.actors.health import Health
from kvactors.actors.mailbox import LanePolicy, MailboxFull
from kvactors.actors.replay import Replayed, replay
from kvactors.actors.reply import Reply, Rewound, Timing, Usage
from kvactors.actors.supervision import DeadLetter, Supervision, Terminated
from kvactors.actors.system import AgentSystem, default_store
from kvactors.core.errors import (
    AdmissionFull,
    BehaviourFailed,
    BlockingCall,
    ContextExceeded,
    EngineDied,
    InvalidInput,
    KvactorsError,
    MemoryExceeded,
    ModelError,
    RewindOutOfRange,
    SwapFailed,
    SystemStopped,
    TurnFailed,
    TurnTimeout,
    Undelivered,
)
from kvactors.core.overflow import DropOldest, Summarize
from kvactors.core.sampling import Sampling

__all__ = [
    "AdmissionFull",
    "Agent",
    "AgentBehaviour",
    "AgentExists",
    "AgentNotStored",
    "AgentSystem",
    "BehaviourFailed",
    "BlockingCall",
    "ContextExceeded",
    "DeadLetter",
    "DropOldest",
    "EncryptionError",
    "EngineDied",
    "ExportRejected",
    "Health",
    "ImportRejected",
    "InvalidInput",
    "KvactorsError",
    "LanePolicy",
    "LedgerUnreadable",
    "MailboxFull",
    "MemoryExceeded",
    "ModelError",
    "ModelMismatch",
    "NewerFormat",
    "Replayed",
    "Reply",
    "RewindOutOfRange",
    "Rewound",
    "Sampling",
    "SaveFailed",
    "SaveQueueFull",
    "StorageError",
    "StoreAlreadyOpen",
    "StoreLocked",
    "StoreNotWritable",
    "Summarize",
    "Supervision",
    "SwapFailed",
    "SystemStopped",
    "Terminated",
    "Timing",
    "TokensMissing",
    "TranscriptView",
    "TurnFailed",
    "TurnTimeout",
    "Undelivered",
    "Usage",
    "default_store",
    "replay",
]
