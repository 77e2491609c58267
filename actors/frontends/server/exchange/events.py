"""What comes of an inquiry, event by event: a module of `wire` makes its interface's of them.

The order is `Begun`, then any number of `Thought`, `Said` and calls (`CallBegun`, some
`CallArguments`, `CallEnded`), then `Ended`. What fails raises out of the iteration. Pure: any
thread.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Begun",
    "CallArguments",
    "CallBegun",
    "CallEnded",
    "Ended",
    "Event",
    "Opened",
    "Reason",
    "Reuse",
    "Said",
    "Thought",
    "TokenLogprob",
    "Usage",
]

Reason = Literal["stop", "length", "calls", "cancelled"]


@dataclass(frozen=True, slots=True)
class Reuse:
    """How a request was matched, for headers, the log and metrics. `kept` names the rules by which
    the ledger's own text stands in place of what was sent; `miss` says where the conversation first
    differs from the nearest one known, with ten characters of both sides, "" if it goes on one or
    begins as none does."""

    how: Literal["new", "goes on", "forked", "again", "attached"]
    kept: tuple[str, ...] = ()
    miss: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """A turn that was taken, before it is admitted: by whom, and what of it is `known` already, in
    tokens. `answer_id` names the answer to `Inquiry.goes_on`, even after a restart. `unread`: what
    of `Inquiry.manner` the chat template knows nothing of, `effort`, `thinks` or a name."""

    agent_id: str
    answer_id: str
    known: int
    reuse: Reuse
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Begun:
    """The turn was admitted. Of `prompt_tokens`, the whole context before the answer, `cached` have
    KV already."""

    prompt_tokens: int
    cached: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of the answer, its text and log-probability, and the likeliest at its place; the
    first token of a prompt has none."""

    token: int
    text: str
    logprob: float | None
    top: tuple[tuple[int, str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Thought:
    """Some of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class Said:
    """Some of the answer's text."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A tool call begins; `index` counts those of this answer from 0."""

    index: int
    call_id: str
    name: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Some of the text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call is complete; `arguments` is the whole text."""

    index: int
    arguments: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens: of the whole context before the answer, of those the ones that had KV, of the answer,
    and of those the ones that were thought."""

    prompt: int
    cached: int
    answer: int
    thought: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is complete. `reason` "calls" means that the client has tools to run."""

    reason: Reason
    usage: Usage
    stop: str | None = None
    """The stop string that ended it, if one did."""


Event = Begun | Thought | Said | CallBegun | CallArguments | CallEnded | Ended
