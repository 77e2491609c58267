"""The actors: AgentSystem and what a user of it needs. Imports no MLX until a model loads. What is
public may be called from any thread. Clusters load asyncio, and so when they are asked for."""

from typing import TYPE_CHECKING, Any

from kvactors.actors.agents.handle import Agent, TranscriptView
from kvactors.actors.behaviours.behaviour import AgentBehaviour
from kvactors.actors.behaviours.replay import Replayed, replay
from kvactors.actors.errors import (
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
    SaveQueueFull,
    StorageError,
    StoreAlreadyOpen,
    StoreLocked,
    StoreNotWritable,
    TokensMissing,
)
from kvactors.actors.runtime.futures import WaitTimeout
from kvactors.actors.runtime.mailbox import LanePolicy
from kvactors.actors.runtime.supervision import DeadLetter, Supervision, Terminated
from kvactors.actors.system.system import AgentSystem, default_store
from kvactors.actors.turns.reply import Reply, Rewound, Timing, Usage
from kvactors.actors.workers.health import Health
from kvactors.core.conversation.context_policy import DropOldest, Summarize
from kvactors.core.errors import (
    AdmissionFull,
    AskCycle,
    BehaviourFailed,
    BlockingCall,
    CacheFull,
    ContextExceeded,
    EmptyPrompt,
    EngineDied,
    FaceMismatch,
    GroupSizeMismatch,
    InvalidAgentId,
    InvalidConfig,
    InvalidGrammar,
    InvalidInput,
    InvalidSampling,
    InvalidStep,
    KvactorsError,
    MailboxFull,
    MemoryExceeded,
    ModelError,
    ModelNotFound,
    ProbeFailed,
    RewindOutOfRange,
    SwapFailed,
    SystemPromptMismatch,
    SystemRunning,
    SystemStopped,
    TemplateError,
    TokenOutOfRange,
    TurnError,
    TurnFailed,
    TurnTimeout,
    Undelivered,
    UnsupportedLayer,
)
from kvactors.core.schedule.eviction import IdleAgent
from kvactors.core.schedule.grammar import Grammar
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.schedule.speculation.speculation import DraftModel

if TYPE_CHECKING:
    from kvactors.actors.cluster.agents.handle import ClusterAgent
    from kvactors.actors.cluster.cluster import Cluster

__all__ = [
    "AdmissionFull",
    "Agent",
    "AgentBehaviour",
    "AgentExists",
    "AgentNotStored",
    "AgentSystem",
    "AskCycle",
    "BackupFailed",
    "BehaviourFailed",
    "BlockingCall",
    "CacheFull",
    "Cluster",
    "ClusterAgent",
    "ContextExceeded",
    "DeadLetter",
    "DraftModel",
    "DropOldest",
    "EmptyPrompt",
    "EncryptionError",
    "EngineDied",
    "ExportRejected",
    "FaceMismatch",
    "Grammar",
    "GroupSizeMismatch",
    "Health",
    "IdleAgent",
    "ImportRejected",
    "InvalidAgentId",
    "InvalidConfig",
    "InvalidGrammar",
    "InvalidInput",
    "InvalidSampling",
    "InvalidStep",
    "KvactorsError",
    "LanePolicy",
    "LedgerUnreadable",
    "MailboxFull",
    "MemoryExceeded",
    "ModelError",
    "ModelMismatch",
    "ModelNotFound",
    "NewerFormat",
    "ProbeFailed",
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
    "SystemPromptMismatch",
    "SystemRunning",
    "SystemStopped",
    "TemplateError",
    "Terminated",
    "Timing",
    "TokenOutOfRange",
    "TokensMissing",
    "TranscriptView",
    "TurnError",
    "TurnFailed",
    "TurnTimeout",
    "Undelivered",
    "UnsupportedLayer",
    "Usage",
    "WaitTimeout",
    "default_store",
    "replay",
]


def __getattr__(name: str) -> Any:
    """Cluster and ClusterAgent. Raises AttributeError for any other name."""
    if name not in ("Cluster", "ClusterAgent"):
        raise AttributeError(f"module 'kvactors.actors' has no attribute {name!r}")
    from kvactors.actors.cluster import cluster

    found = globals()[name] = getattr(cluster, name)
    return found
