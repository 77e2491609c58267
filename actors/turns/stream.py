"""A turn's text, piece by piece, detokenized by whoever reads it: on a thread, or under asyncio."""

from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import NoReturn, Self

from kvactors.actors.runtime.blocking import check_may_block, drive
from kvactors.actors.turns.checks import stays_here
from kvactors.actors.turns.reply import Reply
from kvactors.actors.turns.ticket import Ticket
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.token_offsets import Detokenizer
from kvactors.core.errors import BlockingCall, KvactorsError
from kvactors.core.schedule.events import Tokens
from kvactors.core.schedule.logprobs import TokenLogprob

__all__ = ["AsyncReplyStream", "Piece", "ReplyStream", "TextPiece"]


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Some of a reply's text, and the tokens that were decoded since the last piece; with the
    log-probability of each, where the turn asks for them."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


Piece = TextPiece


class ReplyStream:
    """Iterates over pieces whose texts add up to the reply's text. One reader.

    `reply` is the turn's Reply once the iteration has ended. Closing early, or letting it go,
    calls `cancel`. The tokens are those of `ticket`; the strings of `stop` are not shown.
    """

    def __init__(self, ticket: Ticket, stop: Sequence[str], cancel: Callable[[], None]) -> None:
        self._ticket = ticket
        self._cancel = cancel
        self._pieces = _run(ticket, stop)

    @property
    def reply(self) -> Reply:
        """The finished turn's Reply; waits for it. Raises what the turn failed with."""
        reply: Reply = self._ticket.reply.get()
        return reply

    def __iter__(self) -> Iterator[TextPiece]:
        return self

    def __next__(self) -> TextPiece:
        return next(self._pieces)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        stays_here(self, "read it here, and pass its text or its reply")

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading; a turn that still runs is cancelled and replies with what there is.

        Any thread: a reader that waits on another one ends with the turn.
        """
        if not self._ticket.reply.done:
            self._cancel()
        with suppress(ValueError):  # The generator is running, on another thread.
            self._pieces.close()


def _run(ticket: Ticket, stop: Sequence[str]) -> Generator[TextPiece, None, None]:
    """Knows nothing of the stream, which is let go as soon as its reader lets it go."""
    check_may_block()
    assert ticket.tokens is not None
    pieces = _Pieces(ticket, stop)
    while (tokens := _next(ticket.tokens)) is not None:
        yield from pieces.add(tokens)
    yield from pieces.rest(ticket.reply.get().text)


def _next(queue: "SimpleQueue[Tokens | None]") -> Tokens | None:
    drive(lambda: not queue.empty())
    return queue.get()


class AsyncReplyStream:
    """A ReplyStream under asyncio: tokens wake the loop, no thread waits for them. One reader.

    `reply` is the turn's Reply once the iteration has ended. Closing early, letting it go, or
    cancelling the task that reads calls `cancel`. The tokens are those of `ticket`; the strings
    of `stop` are not shown.
    """

    def __init__(self, ticket: Ticket, stop: Sequence[str], cancel: Callable[[], None]) -> None:
        self._ticket = ticket
        self._cancel = cancel
        self._pieces = _read(ticket, stop)

    @property
    def reply(self) -> Reply:
        """The finished turn's Reply. Raises what the turn failed with, and BlockingCall before
        its end: it would hold up the loop."""
        if not self._ticket.reply.done:
            raise BlockingCall("the turn has not ended: read the stream to its end, or aclose() it")
        reply: Reply = self._ticket.reply.get()
        return reply

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TextPiece:
        try:
            return await anext(self._pieces)
        except BaseException:
            self._leave()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._leave()

    async def aclose(self) -> None:
        """Stop reading; a turn that still runs is cancelled and replies with what there is. Returns
        when it has."""
        self._leave()
        with suppress(RuntimeError):  # Another task reads just now: its reading ends with the turn.
            await self._pieces.aclose()
        with suppress(KvactorsError):
            await self._ticket.reply

    def _leave(self) -> None:
        if not self._ticket.reply.done:
            self._cancel()


async def _read(ticket: Ticket, stop: Sequence[str]) -> AsyncGenerator[TextPiece, None]:
    import asyncio

    from kvactors.actors.turns.wakes import wakes_of

    fresh = asyncio.Event()
    assert ticket.tokens is not None
    ticket.on_push = partial(wakes_of(asyncio.get_running_loop()).set, fresh)
    pieces = _Pieces(ticket, stop)
    while True:
        # Before the queue is read: what comes after that sets it again.
        fresh.clear()
        while not ticket.tokens.empty():
            tokens = ticket.tokens.get()
            if tokens is None:
                for piece in pieces.rest((await ticket.reply).text):
                    yield piece
                return
            for piece in pieces.add(tokens):
                yield piece
        await fresh.wait()


class _Pieces:
    """What is to be shown of a turn, as its tokens come."""

    def __init__(self, ticket: Ticket, stop: Sequence[str]) -> None:
        self._ticket = ticket
        self._stop = stop
        self._text: _Text | None = None
        self._shown = 0
        self._fresh: list[int] = []
        self._logprobs: list[TokenLogprob] = []

    def add(self, tokens: Tokens) -> Iterator[TextPiece]:
        """The piece that further tokens complete, if they do."""
        # A turn that waited for a model swap is the new model's.
        assert self._ticket.chat is not None
        self._text = self._text or _Text(self._ticket.chat, self._stop, self._ticket.behind)
        self._fresh += tokens.token_ids
        self._logprobs += tokens.logprobs
        stable = self._text.add(tokens.token_ids)
        if len(stable) > self._shown:
            piece = self._piece(stable[self._shown :])
            self._shown, self._fresh, self._logprobs = len(stable), [], []
            yield piece

    def rest(self, text: str) -> Iterator[TextPiece]:
        """What is left of the finished turn's text."""
        rest = text[self._shown :]
        if rest or self._fresh:
            yield self._piece(rest)

    def _piece(self, text: str) -> TextPiece:
        return TextPiece(text, tuple(self._fresh), tuple(self._logprobs))


class _Text:
    """The text of the tokens so far, `behind` some, as far as later tokens cannot change it.

    What may become a stop string is held back: stop strings are looked for in that and what is new
    alone.
    """

    def __init__(self, chat: ChatFormat, stop: Sequence[str], behind: Sequence[int] = ()) -> None:
        self._eos = chat.eos
        self._said = Detokenizer(chat.decode, behind)
        self._stop = stop
        self._hold = max((len(string) - 1 for string in stop), default=0)
        self._text = ""
        self._cuts: list[int] = []

    def add(self, tokens: Sequence[int]) -> str:
        """All text that is certain after these further tokens."""
        begin = max(0, len(self._text) - self._hold)
        self._text += self._said.add([token for token in tokens if token not in self._eos])
        found = (self._text.find(string, begin) for string in self._stop)
        self._cuts += (place for place in found if place >= 0)
        return self._text[: min(self._cuts, default=max(0, len(self._text) - self._hold))]
