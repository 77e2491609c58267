"""What the handles of agents ask of their system: prompts into lanes, messages, the model. Any
thread."""

import weakref
from collections.abc import Callable
from typing import Any

from kvactors.actors.agents.actor import AgentActor
from kvactors.actors.runtime.dispatcher import send
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.runtime.timer import Deadline
from kvactors.actors.turns.checks import check_turn
from kvactors.actors.turns.messages_agent import CancelTurn, MakePrompt
from kvactors.actors.turns.outstanding import Outstanding
from kvactors.actors.turns.ticket import Ticket
from kvactors.core.errors import MailboxFull, SystemStopped, TurnTimeout
from kvactors.core.model.info import ModelInfo

__all__ = ["AgentHost", "gone"]


class AgentHost:
    """What the agents of one system have in common for their handles. `model` is the one loaded.

    `post` and `ask` send messages to behaviours; `require_running` raises SystemStopped where
    nothing is accepted. `outstanding` counts who waits, `after` calls back in so many seconds by
    the clock of `now`.
    """

    def __init__(
        self,
        outstanding: Outstanding,
        after: Callable[[float, Callable[[], object]], Deadline],
        post: Callable[[str, Any, None], ReplyFuture[None]],
        ask: Callable[[str, Any, None, float | None], ReplyFuture[Any]],
        require_running: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        self.model: ModelInfo | None = None
        self._outstanding = outstanding
        self._after = after
        self._post = post
        self._ask = ask
        self._require_running = require_running
        self._now = now

    @property
    def info(self) -> ModelInfo:
        """The loaded model: name, cache spec, fingerprint, device, memory budget."""
        if self.model is None:
            raise SystemStopped("the system has not been started: use `with` or start()")
        return self.model

    def post(self, agent_id: str, message: Any) -> ReplyFuture[None]:
        """Send a message from outside of the agents."""
        self._require_running()
        return self._post(agent_id, message, None)

    def request(self, agent_id: str, message: Any, timeout: float | None) -> ReplyFuture[Any]:
        """Send a `message` to the behaviour of `agent_id` and wait for its answer, `timeout`
        seconds at most."""
        self._require_running()
        check_turn(None, timeout)
        return self._ask(agent_id, message, None, timeout)

    def send(
        self, actor: AgentActor, make: MakePrompt, timeout: float | None, *, streamed: bool
    ) -> Ticket:
        """Put the prompt that `make` makes of a ticket into the lane of an agent of this system, by
        its `actor`; `timeout` in seconds bounds its turn, `streamed`: somebody reads its tokens.
        Raises MailboxFull, TurnTimeout (before there was room), SystemStopped, EngineDied,
        SaveQueueFull."""
        ticket = Ticket.begin(actor.agent_id, streamed=streamed)
        self._outstanding.begin_turn(ticket)
        begun = self._now()
        try:
            accepted = send(actor.actor_ref, make(ticket), timeout)
        except MailboxFull as error:
            if timeout is None or self._now() - begun < timeout:
                ticket.reject(error)
                raise
            late = _late(actor, timeout)
            ticket.reject(late)
            raise late from None
        except BaseException as error:
            # Ctrl-C while room was waited for, or a defect: `stop` waits for tickets.
            ticket.reject(error)
            raise
        if not accepted:
            left = gone(actor.agent_id, deactivated=actor.deactivated)
            ticket.reject(left)
            raise left
        if timeout is not None:
            # Weakly: neither a reply that arrived long ago nor an agent is kept for a deadline.
            whose, what = weakref.ref(actor), weakref.ref(ticket)
            rest = max(0.0, timeout - (self._now() - begun))
            deadline = self._after(rest, lambda: _expire(whose(), what(), timeout))
            deadline.until(ticket.reply)
        return ticket


def gone(agent_id: str, *, deactivated: bool = False) -> SystemStopped:
    """What a prompt to an agent that is no more, or is on disk alone, fails with."""
    if deactivated:
        return SystemStopped(f"agent {agent_id!r} was deactivated: spawn it again")
    return SystemStopped(f"agent {agent_id!r} was forgotten or stopped")


def _expire(actor: AgentActor | None, ticket: Ticket | None, seconds: float) -> None:
    if actor is not None and ticket is not None and not ticket.reply.done:
        send(actor.actor_ref, CancelTurn(ticket, _late(actor, seconds)))


def _late(actor: AgentActor, seconds: float) -> TurnTimeout:
    return TurnTimeout(f"the turn of {actor.agent_id!r} took longer than {seconds:g} s")
