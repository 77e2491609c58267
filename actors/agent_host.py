"""What the handles of agents ask of their system: prompts into lanes, messages, the model."""

import weakref
from typing import Any

from kvactors.actors.agent import AgentActor
from kvactors.actors.crew import Lifecycle
from kvactors.actors.dispatcher import send
from kvactors.actors.futures import ReplyFuture
from kvactors.actors.mailbox import MailboxFull
from kvactors.actors.messages import CancelTurn, MakePrompt
from kvactors.actors.parameters import check_turn
from kvactors.actors.reply import Ticket
from kvactors.actors.stage import MessageRouter
from kvactors.core.errors import SystemStopped, TurnTimeout
from kvactors.core.info import ModelInfo

__all__ = ["AgentHost", "gone"]


class AgentHost:
    """The `kvactors.actors.host.Host` of one system's agents; `model` is what is loaded."""

    def __init__(self, lifecycle: Lifecycle, router: MessageRouter) -> None:
        self.model: ModelInfo | None = None
        self._lifecycle = lifecycle
        self._router = router

    @property
    def info(self) -> ModelInfo:
        """The loaded model: name, cache spec, fingerprint, device, memory budget."""
        if self.model is None:
            raise SystemStopped("the system has not been started: use `with` or start()")
        return self.model

    def post(self, agent_id: str, message: Any) -> ReplyFuture[None]:
        """Send a message from outside of the agents."""
        self._lifecycle.require_running()
        return self._router.post(agent_id, message, None)

    def request(self, agent_id: str, message: Any, timeout: float | None) -> ReplyFuture[Any]:
        """Send a message and wait for its answer."""
        self._lifecycle.require_running()
        check_turn(None, timeout)
        return self._router.ask(agent_id, message, None, timeout)

    def send(
        self, actor: AgentActor, make: MakePrompt, timeout: float | None, *, streamed: bool
    ) -> Ticket:
        """Put a prompt into the lane of an agent of this system. Raises MailboxFull,
        SystemStopped, EngineDied, SaveQueueFull."""
        ticket = Ticket.begin(actor.agent_id, streamed=streamed)
        self._lifecycle.outstanding.begin_turn(ticket)
        try:
            accepted = send(actor.actor_ref, make(ticket))
        except MailboxFull as error:
            ticket.reject(error)
            raise
        if not accepted:
            forgotten = gone(actor.agent_id)
            ticket.reject(forgotten)
            raise forgotten
        if timeout is not None:
            # Weakly: a reply that arrived long ago is not kept for its deadline.
            late = weakref.ref(ticket)
            self._lifecycle.after(timeout, lambda: _expire(actor, late(), timeout))
        return ticket


def gone(agent_id: str) -> SystemStopped:
    """What a prompt to an agent that is no more fails with."""
    return SystemStopped(f"agent {agent_id!r} was forgotten or stopped")


def _expire(actor: AgentActor, ticket: Ticket | None, seconds: float) -> None:
    if ticket is not None and not ticket.reply.done:
        late = TurnTimeout(f"the turn of {actor.agent_id!r} took longer than {seconds:g} s")
        send(actor.actor_ref, CancelTurn(ticket, late))
