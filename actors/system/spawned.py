"""One spawned agent, and what its ledger says it remembers. Any thread."""

from typing import Any, NamedTuple

from kvactors.actors.agents.actor import AgentActor
from kvactors.actors.agents.handle import Agent
from kvactors.actors.errors import LedgerUnreadable
from kvactors.core.conversation.transcript import Transcript
from kvactors.core.model.info import ModelInfo

__all__ = ["Spawned", "restored"]


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
