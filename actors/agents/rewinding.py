"""An agent forgets the end of what it remembers. On the agent's thread."""

from collections.abc import Sequence

from kvactors.actors.agents.services import AgentServices
from kvactors.actors.turns.messages_agent import Rewind
from kvactors.actors.turns.reply import Rewound
from kvactors.core.conversation.rewind import cut_at_token, cut_turns
from kvactors.core.conversation.transcript import Transcript
from kvactors.core.conversation.turn import Turn

__all__ = ["rewind"]


def rewind(message: Rewind, transcript: Transcript, services: AgentServices) -> None:
    """Do what `message` says to `transcript`, through `services` to its ledger too. What was done
    under its request id before is not done again, nor what concerns a turn that is not the last
    one: then it is answered with what is left."""
    ticket = message.ticket
    again = transcript.answered.get(message.request_id) is not None
    others = message.last is not None and message.last is not next(reversed(transcript.turns), None)
    if again or others:
        services.confirm(ticket)
    else:
        try:
            keep, remains = _cut(message, transcript)
        except Exception as error:
            # Who waits hears of whatever it is, and the agent goes on.
            ticket.reject(error)
            return
        record = transcript.extend(remains, keep, request_id=message.request_id)
        services.save(ticket.agent_id, record, ticket, ())
    left = sum(len(turn.token_ids) for turn in transcript.turns)
    ticket.resolve(Rewound(len(transcript.turns), left, ticket.durable))


def _cut(message: Rewind, transcript: Transcript) -> tuple[int, Sequence[Turn]]:
    if message.to_token is not None:
        return cut_at_token(transcript, message.to_token)
    return cut_turns(transcript.turns, message.turns or 1), ()
