"""What the engine reports, and KV as it crosses threads: bytes, never arrays."""

from dataclasses import dataclass

from kvactors.core.cache.segment import Segment
from kvactors.core.schedule.logprobs import TokenLogprob
from kvactors.core.schedule.request import Request

__all__ = ["Aborted", "Begun", "Event", "Finished", "KVNeeded", "Progress", "Tokens"]


@dataclass(frozen=True, slots=True)
class Begun:
    """A streamed turn was admitted: of its `prompt` tokens `kept` have KV already."""

    agent_id: str
    serial: int
    prompt: int
    kept: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """New tokens of a running turn, and of each its log-probability if the turn asks for them."""

    agent_id: str
    serial: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """A turn ended with a reply; the engine no longer uses the request."""

    request: Request
    reason: str
    finished_at: float
    exported: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Aborted:
    """A turn failed and left no trace."""

    agent_id: str
    serial: int
    error: Exception


@dataclass(frozen=True, slots=True)
class KVNeeded:
    """An agent with a past has no hot cache: answer with `Engine.provide`."""

    agent_id: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A prompt's prefill: `done` of `total` tokens that were not cached when it began."""

    agent_id: str
    done: int
    total: int


Event = Begun | Tokens | Finished | Aborted | KVNeeded | Progress
