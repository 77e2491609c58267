"""The exceptions of kvactors, all under one root.

    KvactorsError
    ├── InvalidInput (also ValueError)    bad arguments, found before any work is done
    │   ├── EmptyPrompt
    │   ├── TokenOutOfRange
    │   ├── InvalidAgentId
    │   ├── InvalidSampling
    │   │   └── InvalidGrammar
    │   ├── InvalidConfig
    │   ├── GroupSizeMismatch
    │   ├── SystemPromptMismatch
    │   ├── RewindOutOfRange
    │   ├── ContextExceeded
    │   ├── MemoryExceeded
    │   ├── InvalidStep
    │   ├── CacheFull
    │   └── FaceMismatch
    ├── ModelError                        the model cannot be used
    │   ├── ModelNotFound
    │   ├── UnsupportedLayer
    │   ├── ProbeFailed
    │   ├── TemplateError
    │   └── SwapFailed
    ├── TurnError                         one turn ended without a reply
    │   ├── TurnFailed
    │   └── TurnTimeout (also TimeoutError)
    ├── SystemRunning                     the system was started already
    ├── SystemStopped                     the system, or this agent, is no longer running
    ├── EngineDied                        the GPU actor is gone; carries the cause
    ├── AdmissionFull                     too many turns wait for the engine
    ├── MailboxFull                       too many prompts wait for one agent
    ├── Undelivered                       a message that no behaviour handled
    ├── AskCycle                          agents that would wait for each other for ever
    ├── BehaviourFailed                   one that a behaviour began, and did not end
    └── BlockingCall                      a blocking wait on a thread that must not block

What can go wrong on disk stands in `kvactors.persistence.errors`, under the same root.
Messages name the rule that was broken and the numbers.
"""

from typing import Any

__all__ = [
    "AdmissionFull",
    "AskCycle",
    "BehaviourFailed",
    "BlockingCall",
    "CacheFull",
    "ContextExceeded",
    "EmptyPrompt",
    "EngineDied",
    "FaceMismatch",
    "GroupSizeMismatch",
    "InvalidAgentId",
    "InvalidConfig",
    "InvalidGrammar",
    "InvalidInput",
    "InvalidSampling",
    "InvalidStep",
    "KvactorsError",
    "MailboxFull",
    "MemoryExceeded",
    "ModelError",
    "ModelNotFound",
    "ProbeFailed",
    "RewindOutOfRange",
    "SwapFailed",
    "SystemPromptMismatch",
    "SystemRunning",
    "SystemStopped",
    "TemplateError",
    "TokenOutOfRange",
    "TurnError",
    "TurnFailed",
    "TurnTimeout",
    "Undelivered",
    "UnsupportedLayer",
]


class KvactorsError(Exception):
    """Root of every error that kvactors raises on purpose. They pass from process to process."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Some are made of other arguments than their message.
        return _again, (type(self), self.args), self.__dict__


class InvalidInput(KvactorsError, ValueError):
    """An argument breaks a rule; nothing was done."""


class EmptyPrompt(InvalidInput):
    """A prompt without text or tokens."""


class TokenOutOfRange(InvalidInput):
    """A token id outside the rows of the model's embedding."""


class InvalidAgentId(InvalidInput):
    """An agent id that is not a string of 1 to 255 characters."""


class InvalidSampling(InvalidInput):
    """A sampling parameter outside its range."""


class InvalidGrammar(InvalidSampling):
    """A grammar that is none, that llguidance cannot hold to, or that no short answer meets."""


class InvalidConfig(InvalidInput):
    """A parameter of AgentSystem outside its range."""


class GroupSizeMismatch(InvalidInput):
    """The quantization group size does not divide a head dimension."""


class SystemPromptMismatch(InvalidInput):
    """An agent that exists was asked for with another system prompt."""


class RewindOutOfRange(InvalidInput):
    """A rewind by more turns, or to a later token, than the agent remembers."""


class ContextExceeded(InvalidInput):
    """Prompt and max_tokens can never fit into the context, as the `message` says: the prompt has
    `prompt` tokens, of which there may be `most` (None where nobody counted them)."""

    def __init__(self, message: str, prompt: int | None = None, most: int | None = None) -> None:
        super().__init__(message)
        self.prompt, self.most = prompt, most


class MemoryExceeded(InvalidInput):
    """A turn can never fit into the memory budget."""


class InvalidStep(InvalidInput):
    """A step, or what is asked between two, that a cache's rules do not allow."""


class CacheFull(InvalidInput):
    """A step needs more cells than a cache has free."""


class FaceMismatch(InvalidInput):
    """A cache cannot do what the kind of session needs that it was made for."""


class ModelError(KvactorsError):
    """The model cannot be loaded or cannot be used."""


class ModelNotFound(ModelError):
    """No model there, or files of it are missing."""


class UnsupportedLayer(ModelError):
    """A layer whose cache kvactors does not support; the message names it."""


class ProbeFailed(ModelError):
    """The load-time probe found wrong logits or an unusable forward."""


class TemplateError(ModelError):
    """The chat template cannot render this turn."""


class SwapFailed(ModelError):
    """The model was not exchanged; the message says which one goes on, `__cause__` why."""


class TurnError(KvactorsError):
    """A turn ended without a reply; ledger and KV are as before it."""


class TurnFailed(TurnError):
    """The model, sampler or tokenizer raised during this turn; see `__cause__`."""


class TurnTimeout(TurnError, TimeoutError):
    """The turn did not finish in the time it was given, queue included."""


class SystemRunning(KvactorsError):
    """The system was started already, and runs."""


class SystemStopped(KvactorsError):
    """The system or the agent is stopped and takes no more messages."""


class EngineDied(KvactorsError):
    """The GPU actor died; the cause is in `__cause__`."""


class AdmissionFull(KvactorsError):
    """The engine's queue of waiting turns is full; the turn left no trace."""


class MailboxFull(KvactorsError):
    """The bounded prompt lane of an agent is full; wait for replies before sending more."""


class Undelivered(KvactorsError):
    """A message to an agent that is not there, or has no behaviour that takes it."""


class AskCycle(KvactorsError):
    """An ask whose answer waits for the asker's own: agents would wait for each other for ever."""


class BehaviourFailed(KvactorsError):
    """The behaviour was restarted, or left with SystemExit and the like, in the middle of it."""


class BlockingCall(KvactorsError):
    """A blocking wait on a pool thread, which would starve other agents."""


def _again(kind: type[KvactorsError], args: tuple[Any, ...]) -> KvactorsError:
    error = kind.__new__(kind)
    error.args = args
    return error
