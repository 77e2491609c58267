"""The messages that agents take: immutable, a line under each field.

Besides these an agent takes the engine's Tokens and Aborted as they are. All that a message can
do is be refused: its receiver is gone, and who waits for it is told.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvactors.actors.runtime.dispatcher import send
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.messages_gpu import Saved
from kvactors.actors.turns.options import TurnOptions
from kvactors.actors.turns.ticket import Ticket
from kvactors.core.conversation.turn import Turn
from kvactors.core.errors import SystemStopped
from kvactors.core.model.info import ModelInfo
from kvactors.core.schedule.events import Finished

__all__ = [
    "Adopt",
    "Ask",
    "CancelTurn",
    "Fork",
    "Leave",
    "MakePrompt",
    "Pause",
    "Prefetch",
    "Prompt",
    "Rewind",
    "TurnFinished",
]


class _InPromptLane:
    """Goes into an agent's bounded prompt lane, which a running turn shuts."""

    __slots__ = ()
    ticket: Ticket

    @property
    def in_prompt_lane(self) -> bool:
        """Whether it waits there."""
        return True

    def reject(self, error: BaseException | None = None) -> None:
        """Fail whoever waits: with `error`, or that the agent stopped first."""
        agent_id = self.ticket.agent_id
        stopped = f"agent {agent_id!r} stopped, or was deactivated, before this turn began"
        self.ticket.reject(error or SystemStopped(stopped))


@dataclass(frozen=True, slots=True)
class Ask(_InPromptLane):
    """To an agent: one turn to take. Goes into the bounded prompt lane."""

    ticket: Ticket
    """Who waits for it."""
    turn: TurnOptions
    """What was asked, checked."""


@dataclass(frozen=True, slots=True)
class Rewind(_InPromptLane):
    """To an agent: forget the end of its transcript. Goes into the bounded prompt lane."""

    ticket: Ticket
    """Who waits for it."""
    turns: int | None
    """How many of the last turns to forget, or None."""
    to_token: int | None
    """How many tokens to keep, or None."""
    request_id: str | None = None
    """Names it: what was taken back under this id is not taken back again."""
    last: Turn | None = None
    """The turn that has to be the last one then, or nothing is forgotten; None: whichever is."""


@dataclass(frozen=True, slots=True)
class Fork(_InPromptLane):
    """To an agent: let a new one begin with all of its memory.

    Its reply is a copy of the transcript, and a future that resolves when the new agent is
    stored (None where nothing is).
    """

    ticket: Ticket
    """Who waits for it."""
    child: str
    """Id of the new agent."""
    wait: bool = True
    """Whether for the turns before it; else what a turn says that still runs is not the child's."""

    @property
    def in_prompt_lane(self) -> bool:
        """Whether it waits there."""
        return self.wait


@dataclass(frozen=True, slots=True)
class Leave(_InPromptLane):
    """To an agent: begin no turn any more, for it is to leave memory; Adopt takes that back. Goes
    into the bounded prompt lane, behind all that was asked before."""

    ticket: Ticket
    """Who waits until it is so."""
    pause: "Pause"
    """How it stands still then."""


Prompt = Ask | Fork | Leave | Rewind
"""What goes into an agent's prompt lane."""

MakePrompt = Callable[[Ticket], Prompt]


@dataclass(frozen=True, slots=True)
class Prefetch:
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
class Pause:
    """To an agent: begin no turn until Adopt; the one that runs ends first."""

    done: ReplyFuture[bool]
    """Resolves when none runs, or the agent is gone."""

    def reject(self, _error: BaseException | None = None) -> None:
        """The agent is gone."""
        self.done.resolve(False)


@dataclass(frozen=True, slots=True)
class Adopt:
    """To an agent: remember under this model from now on, and take turns again."""

    model: ModelInfo
    """The one that is loaded."""
    done: ReplyFuture[bool]
    """Resolves when it does, or is gone."""
    behind: Pause | None = None
    """Only if it was not paused anew since this one."""

    def reject(self, _error: BaseException | None = None) -> None:
        """The agent is gone."""
        self.done.resolve(False)
