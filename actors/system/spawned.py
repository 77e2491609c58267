"""One spawned agent, and what its ledger says it remembers. Any thread."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kvactors.actors.agents.actor import AgentActor
from kvactors.actors.agents.handle import Agent
from kvactors.actors.agents.services import AgentServices
from kvactors.actors.errors import LedgerUnreadable
from kvactors.actors.runtime.dispatcher import send
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.system.lifecycle import Lifecycle
from kvactors.actors.turns.messages_agent import Adopt, Pause
from kvactors.core.conversation.transcript import Transcript
from kvactors.core.model.info import ModelInfo

__all__ = ["Spawned", "restored", "services_of", "tell_each"]


class Spawned(NamedTuple):
    """An agent of a running system."""

    actor: AgentActor
    handle: Agent


def restored(info: ModelInfo, agent_id: str, records: Any, system_prompt: str | None) -> Transcript:
    """What the agent `agent_id` remembers by its ledger's `records`, if there are any, under the
    model of `info`. Raises LedgerUnreadable, and SystemPromptMismatch if `system_prompt` is given
    and is another."""
    try:
        transcript = Transcript.restore(info.chat, info.tokenizer_id, records or ())
    except (KeyError, TypeError, ValueError) as error:
        reason = f"it holds records of another form: {error}"
        raise LedgerUnreadable(f"of {agent_id!r}", reason) from error
    if records:
        transcript.require_system_prompt(system_prompt)
    else:
        transcript.system_prompt = system_prompt
    return transcript


def services_of(
    lifecycle: Lifecycle, model: ModelInfo, *, isolated: bool, log_text: bool
) -> AgentServices:
    """What the agents of a system share: its `lifecycle` has the actors, `model` is the one that is
    loaded; `isolated` and `log_text` as for the registry."""
    actors = lifecycle.gpu, lifecycle.persistence, lifecycle.outstanding
    return AgentServices(*actors, model, lifecycle.pool, isolated=isolated, log_text=log_text)


def tell_each(
    actors: Iterable[AgentActor], make: Callable[[ReplyFuture[bool]], Pause | Adopt]
) -> list[ReplyFuture[bool]]:
    """Tell each of these what `make` makes of a future; the futures of those that run."""
    messages = [(actor, make(ReplyFuture())) for actor in actors]
    return [message.done for actor, message in messages if send(actor.actor_ref, message)]
