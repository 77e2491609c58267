"""Answers that a test writes: all but the model's own draw is real."""

from collections.abc import AsyncGenerator, Awaitable, Callable

from kvactors.actors.frontends.server.dialect.dialect import Dialect
from kvactors.actors.frontends.server.exchange.events import (
    Begun,
    Ended,
    Event,
    Opened,
    Reuse,
    Usage,
)
from kvactors.actors.frontends.server.exchange.inquiry import Inquiry

__all__ = ["ScriptedAnswers"]

Piece = str | Event | Exception | Callable[[], Awaitable[object]]


class ScriptedAnswers:
    """Answers every inquiry with the same `pieces`: text as a model would write it, read by the
    `dialect`, events as they are, an error to raise, or what is waited for. `asked` has the
    inquiries."""

    def __init__(self, dialect: Dialect, *pieces: Piece) -> None:
        self._dialect = dialect
        self._pieces = pieces
        self.asked: list[Inquiry] = []

    async def open(self, inquiry: Inquiry, *, key: str = "") -> "_Answer":
        self.asked.append(inquiry)
        return _Answer(self._dialect, inquiry, self._pieces, len(self.asked))

    def count(self, inquiry: Inquiry) -> int:
        return sum(len(message.text.split()) for message in inquiry.messages)


class _Answer:
    def __init__(
        self, dialect: Dialect, inquiry: Inquiry, pieces: tuple[Piece, ...], number: int
    ) -> None:
        self.opened = Opened("agent", f"answer{number}", 0, Reuse("new"))
        self._pieces = pieces
        self._reader = dialect.reader(inquiry, lambda place: f"call_{place}")

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        yield Begun(10, 4)
        for piece in self._pieces:
            if isinstance(piece, str):
                for event in self._reader.feed(piece):
                    yield event
            elif isinstance(piece, Exception):
                raise piece
            elif isinstance(piece, Event):
                yield piece
            else:
                await piece()
        for event in self._reader.end():
            yield event
        reason = "calls" if self._reader.calls else "stop"
        yield Ended(reason, Usage(10, 4, 5, 2))  # type: ignore[arg-type]
