"""Spawned agents: how one begins, and what its ledger says it remembers. Any thread."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kvactors.actors.agents.actor import AgentActor
from kvactors.actors.agents.handle import Agent
from kvactors.actors.agents.host import AgentHost
from kvactors.actors.agents.services import AgentServices
from kvactors.actors.errors import LedgerUnreadable
from kvactors.actors.runtime.dispatcher import send
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.runtime.mailbox import LanePolicy
from kvactors.actors.system.export import readable
from kvactors.actors.system.lifecycle import Lifecycle
from kvactors.actors.turns.messages_agent import Adopt, Pause
from kvactors.actors.turns.messages_store import ReadLedger
from kvactors.core.conversation.context_policy import ContextPolicy
from kvactors.core.conversation.transcript import Transcript
from kvactors.core.model.info import ModelInfo

__all__ = ["AgentMaker", "Spawned", "restored", "tell_each"]


class Spawned(NamedTuple):
    """An agent of a running system."""

    actor: AgentActor
    handle: Agent


class AgentMaker:
    """Begins the actors of one system's agents. `lifecycle` has the actors that they need, `host`
    their model; `isolated`, `lane` and `log_text` as for the registry.

    `kind` is the class of their actors; another one is for agents that begin after it was set
    (`kvactors.actors.testing`). While `paused` they take no turn.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        host: AgentHost,
        *,
        isolated: bool,
        lane: LanePolicy,
        log_text: bool,
    ) -> None:
        self.kind: type[AgentActor] = AgentActor
        self.paused = False
        self._lifecycle = lifecycle
        self._host = host
        self._isolated, self._lane, self._log_text = isolated, lane, log_text

    def records(self, agent_id: str) -> Any:
        """An agent's ledger, or None. Waits for the store."""
        store = self._lifecycle.persistence
        return None if store is None else self._lifecycle.ask(store, ReadLedger(agent_id))

    def begin(self, agent_id: str, transcript: Transcript, policy: ContextPolicy | None) -> Spawned:
        """The agent `agent_id`, who remembers this `transcript`, with its context `policy`."""
        lifecycle = self._lifecycle
        services = AgentServices(
            lifecycle.gpu,
            lifecycle.persistence,
            lifecycle.outstanding,
            self._host.info,
            lifecycle.pool,
            isolated=self._isolated,
            log_text=self._log_text,
        )
        actor = self.kind(agent_id, transcript, services, policy or "refuse")
        actor.actor_inbox.lane = self._lane
        actor.begin()
        if self.paused:
            send(actor.actor_ref, Pause(ReplyFuture()))
        return Spawned(actor, Agent(self._host, actor))


def restored(info: ModelInfo, agent_id: str, records: Any, system_prompt: str | None) -> Transcript:
    """What the agent `agent_id` remembers by its ledger's `records`, if there are any, under the
    model of `info`. Raises LedgerUnreadable, NewerFormat, and SystemPromptMismatch if
    `system_prompt` is given and is another."""
    try:
        transcript = Transcript.restore(info.chat, info.tokenizer_id, readable(agent_id, records))
    except (KeyError, TypeError, ValueError) as error:
        reason = f"it holds records of another form: {error}"
        raise LedgerUnreadable(f"of {agent_id!r}", reason) from error
    if records:
        transcript.require_system_prompt(system_prompt)
    else:
        transcript.system_prompt = system_prompt
    return transcript


def tell_each(
    actors: Iterable[AgentActor], make: Callable[[ReplyFuture[bool]], Pause | Adopt]
) -> list[ReplyFuture[bool]]:
    """Tell each of these what `make` makes of a future; the futures of those that run."""
    messages = [(actor, make(ReplyFuture())) for actor in actors]
    return [message.done for actor, message in messages if send(actor.actor_ref, message)]
