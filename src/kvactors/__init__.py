"""LLM agents as actors, each with a persistent KV cache of its own: the public names.

They are those of `kvactors.actors`, imported when they are first asked for: `import kvactors` alone
loads neither pykka nor MLX.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvactors.actors import (
        AdmissionFull,
        Agent,
        AgentBehaviour,
        AgentExists,
        AgentNotStored,
        AgentSystem,
        AskCycle,
        BehaviourFailed,
        BlockingCall,
        ContextExceeded,
        DeadLetter,
        DropOldest,
        EmptyPrompt,
        EncryptionError,
        EngineDied,
        ExportRejected,
        Grammar,
        GroupSizeMismatch,
        Health,
        ImportRejected,
        InvalidAgentId,
        InvalidConfig,
        InvalidGrammar,
        InvalidInput,
        InvalidSampling,
        KvactorsError,
        LanePolicy,
        LedgerUnreadable,
        MailboxFull,
        MemoryExceeded,
        ModelError,
        ModelMismatch,
        ModelNotFound,
        NewerFormat,
        ProbeFailed,
        Replayed,
        Reply,
        RewindOutOfRange,
        Rewound,
        Sampling,
        SaveFailed,
        SaveQueueFull,
        StorageError,
        StoreAlreadyOpen,
        StoreLocked,
        StoreNotWritable,
        Summarize,
        Supervision,
        SwapFailed,
        SystemPromptMismatch,
        SystemRunning,
        SystemStopped,
        TemplateError,
        Terminated,
        Timing,
        TokenOutOfRange,
        TokensMissing,
        TranscriptView,
        TurnError,
        TurnFailed,
        TurnTimeout,
        Undelivered,
        UnsupportedLayer,
        Usage,
        WaitTimeout,
        default_store,
        replay,
    )

    __version__: str

__all__ = [
    "AdmissionFull",
    "Agent",
    "AgentBehaviour",
    "AgentExists",
    "AgentNotStored",
    "AgentSystem",
    "AskCycle",
    "BehaviourFailed",
    "BlockingCall",
    "ContextExceeded",
    "DeadLetter",
    "DropOldest",
    "EmptyPrompt",
    "EncryptionError",
    "EngineDied",
    "ExportRejected",
    "Grammar",
    "GroupSizeMismatch",
    "Health",
    "ImportRejected",
    "InvalidAgentId",
    "InvalidConfig",
    "InvalidGrammar",
    "InvalidInput",
    "InvalidSampling",
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
    "__version__",
    "default_store",
    "replay",
]


def __getattr__(name: str) -> Any:
    """A public name, which is kept from then on. Raises AttributeError for any other."""
    if name == "__version__":
        value: Any = metadata.version("kvactors")
    elif name in __all__:
        value = getattr(import_module("kvactors.actors"), name)
    else:
        raise AttributeError(f"module 'kvactors' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
