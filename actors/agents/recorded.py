"""A request that comes again, and whose turn the agent has taken: its answer is given from the
ledger. On the agent's thread."""

from collections.abc import Sequence

from kvactors.actors.agents.services import AgentServices
from kvactors.actors.turns.messages_agent import Ask
from kvactors.actors.turns.reply import recorded_reply
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.turn import Turn
from kvactors.core.schedule.events import Tokens

__all__ = ["answer_again"]


def answer_again(
    ask: Ask, answer: Sequence[Turn], chat: ChatFormat, services: AgentServices
) -> None:
    """Reply to `ask` with the `answer` that its request had, its tokens read by `chat`; `services`
    say when the turn is on disk: it may not have been when it was answered."""
    ticket = ask.ticket
    ticket.chat = chat
    for turn in answer:
        ticket.push(Tokens(ticket.agent_id, ticket.serial, turn.token_ids))
    services.confirm(ticket)
    ticket.resolve(recorded_reply(answer, ticket))
