"""Every message between the actors: immutable, without logic, a line under each field."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from kvactors.actors.dispatcher import send
from kvactors.actors.reply import Ticket
from kvactors.actors.said import Said
from kvactors.core.errors import SystemStopped
from kvactors.core.events import ExportedKV, Finished
from kvactors.core.request import Request
from kvactors.core.sampling import Sampling
from kvactors.persistence.save import Save
from kvactors.persistence.store import Store

__all__ = [
    "Ask",
    "CacheAhead",
    "Cancel",
    "CancelTurn",
    "Check",
    "CountStored",
    "Flush",
    "Forget",
    "ForgetStored",
    "Fork",
    "ForkCache",
    "LoadKV",
    "MakePrompt",
    "NewTokens",
    "OpenStore",
    "Prefetch",
    "Prompt",
    "ReadLedger",
    "ReadStats",
    "ReadTurns",
    "Restored",
    "Rewind",
    "SaveTurn",
    "Saved",
    "Step",
    "Tick",
    "TurnAborted",
    "TurnFinished",
    "Wire",
    "WithStore",
]


class _InPromptLane:
    """Goes into an agent's bounded prompt lane, which a running turn shuts."""

    __slots__ = ()
    in_prompt_lane: ClassVar[Literal[True]] = True
    ticket: Ticket

    def reject(self, error: BaseException | None = None) -> None:
        """Fail whoever waits: with `error`, or that the agent stopped first."""
        stopped = f"agent {self.ticket.agent_id!r} stopped before this turn began"
        self.ticket.reject(error or SystemStopped(stopped))


@dataclass(frozen=True, slots=True)
class Ask(_InPromptLane):
    """To an agent: one turn to take. Goes into the bounded prompt lane."""

    ticket: Ticket
    """Who waits for it."""
    role: str
    """Role of the new turn: user, or what `observe` was given."""
    said: Said
    """What the turn adds, or the whole conversation that it ends."""
    sampling: Sampling
    """How to decode."""
    answer: bool
    """Whether an answer is wanted; False: remember only."""
    priority: int = 0
    """Before turns of other agents that have a lower one."""


@dataclass(frozen=True, slots=True)
class Rewind(_InPromptLane):
    """To an agent: forget the end of its transcript. Goes into the bounded prompt lane."""

    ticket: Ticket
    """Who waits for it."""
    turns: int | None
    """How many of the last turns to forget, or None."""
    to_token: int | None
    """How many tokens to keep, or None."""


@dataclass(frozen=True, slots=True)
class Fork(_InPromptLane):
    """To an agent: let a new one begin with all of its memory. Goes into the prompt lane.

    Its reply is a copy of the transcript, and a future that resolves when the new agent is
    stored (None where nothing is).
    """

    ticket: Ticket
    """Who waits for it."""
    child: str
    """Id of the new agent."""


Prompt = Ask | Fork | Rewind
"""What goes into an agent's prompt lane."""

MakePrompt = Callable[[Ticket], Prompt]


@dataclass(frozen=True, slots=True)
class CacheAhead:
    """To an agent: have its KV read ahead of its next turn."""


@dataclass(frozen=True, slots=True)
class CancelTurn:
    """To an agent: end a turn, running or still waiting in its mailbox."""

    ticket: Ticket | None
    """Which one; None: the one that runs, or waits first."""
    error: Exception | None = None
    """Fail it with this and leave no trace, instead of replying with what there is."""
    serial: int = 0
    """When it was called: turns asked later are not meant."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """To the GPU actor: end a running turn at the next step."""

    agent_id: str
    """Whose turn."""
    serial: int
    """Which one."""
    error: Exception | None = None
    """Fail it with this and leave no trace, instead of replying with what there is."""


@dataclass(frozen=True, slots=True)
class Prefetch:
    """To the GPU actor: read an agent's KV ahead of its next turn, if there is room."""

    agent_id: str
    """Whose."""
    token_ids: tuple[int, ...]
    """All that it remembers."""


@dataclass(frozen=True, slots=True)
class ForkCache:
    """To the GPU actor: let a new agent begin with another one's hot cache."""

    parent: str
    """Whose cache."""
    child: str
    """Who begins with it."""


@dataclass(frozen=True, slots=True)
class NewTokens:
    """To an agent: tokens of its running turn."""

    serial: int
    """Which turn."""
    token_ids: tuple[int, ...]
    """In order, usually one."""


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """To an agent: its turn ended with a reply."""

    finished: Finished
    """Tokens, reason, times, and the new KV as bytes."""
    gpu: Any
    """Who counts these bytes until they are saved."""

    def reject(self, _error: BaseException | None = None) -> None:
        """The agent stopped first, or has no use for it: nobody will save them."""
        nbytes = sum(part.nbytes for part in self.finished.exported)
        if nbytes:
            send(self.gpu, Saved(self.finished.request.agent_id, nbytes, limit=0))


@dataclass(frozen=True, slots=True)
class TurnAborted:
    """To an agent: its turn failed and left no trace."""

    serial: int
    """Which turn."""
    error: Exception
    """Why."""


@dataclass(frozen=True, slots=True)
class Step:
    """To the GPU actor: one turn to run."""

    request: Request
    """The record of the turn; the engine owns it from now on."""
    agent: Any
    """ActorRef of the agent, for tokens and the end."""


@dataclass(frozen=True, slots=True)
class Wire:
    """To the GPU actor, by ask: who reads and writes for it."""

    persistence: Any
    """ActorRef of the persistence actor."""


@dataclass(frozen=True, slots=True)
class Tick:
    """The GPU actor to itself: run the next plan."""


@dataclass(frozen=True, slots=True)
class Forget:
    """To the GPU actor, by ask: drop an agent's hot cache."""

    agent_id: str
    """Whose."""


@dataclass(frozen=True, slots=True)
class ReadStats:
    """To the GPU actor, by ask: counts and bytes, and the ids of the agents in memory."""


@dataclass(frozen=True, slots=True)
class ReadTurns:
    """To the GPU actor, by ask: the turns that run or wait there, and how far they are."""


@dataclass(frozen=True, slots=True)
class Check:
    """To the GPU actor, by ask: prove the engine's bookkeeping. For tests."""


@dataclass(frozen=True, slots=True)
class CountStored:
    """To the persistence actor, by ask: what is stored, and what of agents not in memory."""

    fingerprint: str
    """Of the model whose KV counts."""
    in_memory: frozenset[str]
    """Agents that do not count."""


@dataclass(frozen=True, slots=True)
class Restored:
    """To the GPU actor: what the store had for an agent, maybe nothing."""

    agent_id: str
    """Whose."""
    fingerprint: str
    """Of which model."""
    stored: Sequence[ExportedKV]
    """Contiguous from token 0."""


@dataclass(frozen=True, slots=True)
class Saved:
    """To the GPU actor: KV no longer waits to be written, or will not be."""

    agent_id: str
    """Whose."""
    nbytes: int
    """Bytes that no longer wait."""
    limit: int | None = None
    """Tokens of KV that the store has, if it has not all that it was given."""


@dataclass(frozen=True, slots=True)
class SaveTurn:
    """To the persistence actor: a finished turn to write."""

    save: Save
    """Ledger records and KV segments."""
    ticket: Ticket
    """Whose `durable` and `cached` to settle."""
    nbytes: int
    """Bytes of KV in it."""
    gpu: Any
    """Who counts these bytes until they are saved."""

    def reject(self, _error: BaseException | None = None) -> None:
        """The persistence actor stopped first: nobody will save them."""
        send(self.gpu, Saved(self.save.agent_id, self.nbytes, limit=0))


@dataclass(frozen=True, slots=True)
class Flush:
    """The persistence actor to itself: commit what has gathered."""


@dataclass(frozen=True, slots=True)
class LoadKV:
    """To the persistence actor: read an agent's KV and send it to the GPU actor."""

    agent_id: str
    """Whose."""
    fingerprint: str
    """Of which model."""


@dataclass(frozen=True, slots=True)
class ReadLedger:
    """To the persistence actor, by ask: an agent's ledger records, or None."""

    agent_id: str
    """Whose."""


@dataclass(frozen=True, slots=True)
class ForgetStored:
    """To the persistence actor, by ask: delete an agent's ledger and KV."""

    agent_id: str
    """Whose."""


@dataclass(frozen=True, slots=True)
class OpenStore:
    """To the persistence actor, by ask: open the store, and so learn what is wrong with it."""


@dataclass(frozen=True, slots=True)
class WithStore:
    """To the persistence actor, by ask: do something with the store, all saves written before.

    For what is long and rare (import and export); answers what `work` returns.
    """

    work: Callable[[Store], Any]
    """Runs on the persistence actor's thread."""
    agent_id: str = ""
    """Who must be in the store with all turns; SaveFailed if the disk refuses some."""
