"""Messages between agents as their actors take them: one to handle, and one to give up; and those
that another system takes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from kvactors.actors.agents.handle import Agent
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.runtime.waits import Answer
from kvactors.core.errors import MailboxFull, TurnTimeout

__all__ = ["Deliver", "Elsewhere", "GiveUp", "nowhere", "settle_by"]


class Origin(Protocol):
    """Who sent a message on."""

    def handled(self, deliver: "Deliver", value: Any) -> None:
        """It was, and this is the answer."""

    def failed(self, deliver: "Deliver", error: BaseException) -> None:
        """It was, and whoever handled it raised this."""

    def undelivered(self, deliver: "Deliver", error: BaseException | None) -> None:
        """It will not be handled."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
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


Elsewhere = Callable[[Deliver], ReplyFuture[Any] | None]
"""Takes a message to an agent that its system does not know: a future of the answer, where nobody
waits for one of when it is in the mailbox there; None: nobody knows that agent. Any thread; must
not wait."""


def nowhere(_deliver: Deliver) -> ReplyFuture[Any] | None:
    """There is one system."""
    return None


def settle_by(deliver: Deliver, sent: ReplyFuture[Any]) -> ReplyFuture[None]:
    """End a message as it was `sent` elsewhere; a future that resolves then. What nobody took is a
    dead letter here."""
    ended: ReplyFuture[None] = ReplyFuture()

    def settle(done: ReplyFuture[Any]) -> None:
        if done.error is None:
            deliver.router.handled(deliver, done.get())
        elif deliver.reply is not None:
            deliver.router.failed(deliver, done.error)
        else:
            deliver.reject(done.error)
        if isinstance(done.error, MailboxFull):
            ended.reject(done.error)
        else:
            ended.resolve(None)

    sent.on_done(settle)
    return ended
