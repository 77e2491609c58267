"""Messages between agents as their actors take them: one to handle, and one to give up."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from kvactors.actors.agents.handle import Agent
from kvactors.actors.runtime.waits import Answer
from kvactors.core.errors import TurnTimeout

__all__ = ["Deliver", "GiveUp"]


class Origin(Protocol):
    """Who sent a message on."""

    def undelivered(self, deliver: "Deliver", error: BaseException | None) -> None:
        """It will not be handled."""


@dataclass(frozen=True, slots=True, eq=False)
class Deliver:
    """To a behaviour's actor: one message. Goes into the bounded lane."""

    message: Any
    """What was sent."""
    sender: Agent | None
    """By whom; None: from outside."""
    receiver: str
    """Id of the agent it is for."""
    reply: Answer | None
    """Who waits for an answer, if anybody."""
    router: Origin
    """Where it ends if it is not handled."""
    in_prompt_lane: Literal[True] = True
    """Sorts it into the lane that a running message shuts."""

    def reject(self, error: BaseException | None = None) -> None:
        """It will not be handled."""
        self.router.undelivered(self, error)


@dataclass(frozen=True, slots=True)
class GiveUp:
    """To a behaviour's actor: whoever asked waits no longer."""

    deliver: Deliver
    """What was to be answered."""
    error: TurnTimeout
    """What its asker was told, and is told to whom its handling has asked."""
