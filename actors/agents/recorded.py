"""A request that comes again, and whose turn the agent has taken: its answer is given from the
ledger. And one that is withdrawn: it is noted there as answered with nothing. On the agent's
thread."""

from collections.abc import Sequence
from dataclasses import replace

from kvactors.actors.agents.answers import said_now
from kvactors.actors.agents.services import AgentServices
from kvactors.actors.turns.messages_agent import Ask
from kvactors.actors.turns.reply import FinishReason, recorded_reply
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.transcript import Transcript
from kvactors.core.conversation.turn import UNBEGUN, Turn
from kvactors.core.schedule.events import Tokens

__all__ = ["answer_again", "withdraw"]


def answer_again(
    ask: Ask, answer: Sequence[Turn], transcript: Transcript, services: AgentServices
) -> None:
    """Reply to `ask` with the `answer` that its request had in a `transcript`; `services` say when
    the turn is on disk: it may not have been when it was answered."""
    ticket, chat = ask.ticket, transcript.chat
    ticket.chat = chat
    services.confirm(ticket)
    # An answer that was wanted and is not there was withdrawn.
    otherwise: FinishReason = "cancelled" if ask.turn.answer else "stop"
    turn, words = replace(UNBEGUN, finish=otherwise), ""
    for known in answer:
        prompt = transcript.answered.prompt(ask.turn.request_id)
        text, words = said_now(chat, ask.turn.sampling, known, prompt)
        ticket.behind = known.token_ids[: known.begun]
        turn = replace(known, text=text, token_ids=_as_said(known, chat)[known.begun :])
        ticket.push(Tokens(ticket.agent_id, ticket.serial, turn.token_ids))
    ticket.resolve(recorded_reply(turn, words, ticket))


def _as_said(turn: Turn, chat: ChatFormat) -> tuple[int, ...]:
    """The tokens of a `turn` of the ledger with the end token that the model said."""
    return chat.said(turn.token_ids) if turn.finish == "stop" and not turn.raw else turn.token_ids


def withdraw(ask: Ask, transcript: Transcript, services: AgentServices) -> None:
    """Note in `transcript`, and through `services` in its ledger, that the request of `ask` is
    answered with nothing, and reply so."""
    record = transcript.extend((), request_id=ask.turn.request_id)
    services.save(ask.ticket.agent_id, record, ask.ticket, ())
    nothing = replace(UNBEGUN, finish="cancelled")
    ask.ticket.resolve(recorded_reply(nothing, "", ask.ticket))
