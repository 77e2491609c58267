"""What a behaviour's actor handles besides messages of agents, and what it is about."""

from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from kvactors.actors.behaviours.mail import Deliver
from kvactors.actors.behaviours.router import MessageRouter
from kvactors.actors.runtime.futures import ReplyFuture

__all__ = ["ChildFailed", "GivenUp", "Restart", "Resume", "Run", "StopBehaviour", "next_awaited"]

_AWAITED = (
    "a behaviour awaits the futures of its own methods, of agents and of run_blocking(), nothing "
    "of asyncio: run_blocking(asyncio.run, work()) runs that"
)


class GivenUp(BaseException):
    """Raised in the handling of a message where it waits: whoever asked waits no longer."""


@dataclass(slots=True, eq=False)
class Run:
    """A message that is being handled, one unit of outstanding work. Without a message: the
    behaviour's own start, and the pause before it starts again. `left`: futures of the turns that
    were taken for it, and that the agent forgets if it fails."""

    deliver: Deliver | None
    work: Coroutine[Any, Any, Any] | None = None
    awaited: ReplyFuture[Any] | None = None
    left: list[ReplyFuture[Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Resume:
    """To a behaviour's actor: what a run awaited is there."""

    run: Run


@dataclass(frozen=True, slots=True)
class Restart:
    """To a behaviour's actor: the pause after a failure is over, and what failed takes no turn."""

    run: Run


@dataclass(frozen=True, slots=True)
class ChildFailed:
    """To a behaviour's actor: a child's behaviour escalated its error."""

    error: BaseException
    router: MessageRouter

    def reject(self, _error: BaseException | None = None) -> None:
        """The parent ended first."""
        self.router.failed(None, self.error)


@dataclass(frozen=True, slots=True)
class StopBehaviour:
    """To a behaviour's actor: end once the message that is handled is. One unit of outstanding
    work until it is known."""

    router: MessageRouter

    def reject(self, _error: BaseException | None = None) -> None:
        """It has ended already."""
        self.router.outstanding.end_work()


def next_awaited(
    work: Coroutine[Any, Any, Any], error: BaseException | None = None
) -> ReplyFuture[Any]:
    """Let the coroutine of a behaviour go on, with this `error` where it waits if there is one,
    until it awaits a future, which is the result, or ends. Raises what it raises."""
    try:
        awaited = work.send(None) if error is None else work.throw(error)
        while not isinstance(awaited, ReplyFuture):
            awaited = work.throw(TypeError(_AWAITED))
    except RuntimeError as raised:
        # asyncio's own words.
        if "event loop" in str(raised):
            raised.add_note(_AWAITED)
        raise
    return awaited
