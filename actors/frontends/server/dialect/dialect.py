"""Dialect: what of an inquiry becomes a model's text, and what of its text becomes events."""

from collections.abc import Callable, Iterator

from kvactors.actors.frontends.server.exchange.events import Event, Said
from kvactors.actors.frontends.server.exchange.inquiry import Call, Inquiry, Message, Tool
from kvactors.core.conversation.chat_format import ChatFormat

__all__ = ["Dialect", "Reader"]


class Reader:
    """Reads one answer. `text` and `calls` are what was found so far; thoughts are no part of the
    text."""

    def __init__(self) -> None:
        self.text = ""
        self.calls: tuple[Call, ...] = ()

    def feed(self, text: str) -> Iterator[Event]:
        """The events of some more text of the answer."""
        self.text += text
        if text:
            yield Said(text)

    def end(self) -> Iterator[Event]:
        """Those of its end."""
        yield from ()


class Dialect:
    """That of one model, by its template `chat`."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat

    def system(self, text: str, tools: tuple[Tool, ...]) -> str | None:
        """The system prompt that says `text` and names the tools; None for none."""
        return text or None

    def turn(self, message: Message) -> tuple[str, str]:
        """The role and text of a turn that says a message."""
        return ("user" if message.role in ("tool", "system") else message.role), message.text

    def reader(self, inquiry: Inquiry, new_id: Callable[[], str]) -> Reader:
        """Who reads the answer to an inquiry; `new_id` makes the id of a call."""
        return Reader()
