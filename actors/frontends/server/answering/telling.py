"""What a turn says, as the events of its answer. The event loop."""

from collections.abc import AsyncGenerator

from kvactors.actors.frontends.server.answering.taken import Taken, is_cut, stop_of
from kvactors.actors.frontends.server.dialect.token_texts import TokenTexts
from kvactors.actors.frontends.server.exchange.events import Begun, Event
from kvactors.actors.frontends.server.exchange.inquiry import Inquiry
from kvactors.actors.turns.reply import Reply
from kvactors.actors.turns.stream import AsyncReplyStream
from kvactors.core.conversation.chat_format import ChatFormat

__all__ = ["told"]


async def told(inquiry: Inquiry, taken: Taken, chat: ChatFormat) -> AsyncGenerator[Event, None]:
    """The events of a turn that was `taken` for an `inquiry`, in the words of `chat`, as they come;
    all but its end. Leaving early ends the turn."""
    ticket, reader, agent = taken.ticket, taken.reader, taken.agent
    assert ticket.admitted is not None
    begun = await ticket.admitted
    if begun is not None:
        yield Begun(begun.prompt, begun.kept)
    texts, stops = TokenTexts(chat, behind=ticket.behind), taken.sampling.stop
    async for piece in AsyncReplyStream(ticket, stops, lambda: agent.end_turn(ticket)):
        for event in reader.feed(piece.text, texts.tell(piece.logprobs)):
            yield event
    reply: Reply = await ticket.reply
    stop = stop_of(agent, stops)
    if stop is not None and stop not in inquiry.sampling.stop:
        # The mark behind the only call: the reader needs it, and the client's own are not shown.
        for event in reader.feed(stop):
            yield event
    for event in reader.end(cut=is_cut(taken, reply)):
        yield event
