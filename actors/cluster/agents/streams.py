"""A turn's text, piece by piece, from another node: on a thread, or under asyncio."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, NoReturn, Self

from kvactors.actors.cluster.host.answers import read_logprobs
from kvactors.actors.cluster.machine.link import Link
from kvactors.actors.cluster.protocol.errors import SaidOtherwise
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.checks import stays_here
from kvactors.actors.turns.reply import Reply
from kvactors.actors.turns.stream import TextPiece
from kvactors.core.errors import BlockingCall, KvactorsError, SystemStopped

__all__ = ["AsyncClusterStream", "ClusterStream", "Pieces", "Reading", "pieces"]

Pieces = AsyncGenerator[TextPiece | Reply, None]
"""What is shown of a turn, and its reply as the last."""


async def pieces(
    items: AsyncIterator[Mapping[str, Any]], reply_of: Callable[[dict[str, Any]], Reply]
) -> Pieces:
    """Of the `items` of the protocol's client, whose answer `reply_of` makes a reply of. A turn
    that was begun again on another node says the same again: that is shown once. Raises
    SaidOtherwise where it does not."""
    shown = _Shown()
    async for item in items:
        if "again" in item:
            shown.again()
        elif "answer" in item:
            if piece := shown.rest(item["answer"]):
                yield piece
            yield reply_of(dict(item))
            return
        elif "text" in item and (piece := shown.add(item)):
            yield piece


class _Shown:
    """How much of a turn's text, and how many of its tokens, have been shown, and how much was said
    since it began, or began again."""

    def __init__(self) -> None:
        self._text, self._tokens = "", 0
        self.again()

    def again(self) -> None:
        """It is said from its beginning."""
        self._characters = self._heard = 0

    def add(self, item: Mapping[str, Any]) -> TextPiece | None:
        """What is new of the next item, if anything is. Raises SaidOtherwise."""
        said = item["text"]
        self._check(said, self._text[self._characters : self._characters + len(said)])
        text = said[max(0, len(self._text) - self._characters) :]
        known = max(0, self._tokens - self._heard)
        tokens, scored = item["tokens"][known:], item.get("logprobs", ())[known:]
        self._characters += len(said)
        self._heard += len(item["tokens"])
        self._text += text
        self._tokens += len(tokens)
        return TextPiece(text, tuple(tokens), read_logprobs(scored)) if text or tokens else None

    def rest(self, answer: Mapping[str, Any]) -> TextPiece | None:
        """What was not shown of the whole answer. Raises SaidOtherwise."""
        self._check(answer["text"], self._text)
        self.again()
        return self.add(answer)

    def _check(self, said: str, known: str) -> None:
        if not said.startswith(known):
            raise SaidOtherwise(shown=len(self._text), what="characters")


class Reading:
    """A turn whose pieces, `found`, are read on the loop of `link`, whether anyone wants them yet
    or not; `cancel` ends it. `reply` is its reply."""

    def __init__(self, link: Link, found: Pieces, cancel: Callable[[], object]) -> None:
        self._pieces: asyncio.Queue[TextPiece | None] = asyncio.Queue()
        self._cancel = cancel
        self._left = False
        self.loop = link.loop
        self.reply: ReplyFuture[Reply] = link.begin(self._read(found))

    async def next(self) -> TextPiece | None:
        """The next piece; None behind the last, always. On the loop."""
        piece = await self._pieces.get()
        if piece is None:
            self._pieces.put_nowait(None)
        return piece

    def leave(self) -> None:
        """Nobody wants the rest: end the turn, unless it has ended. Any thread."""
        if not self._left and not self.reply.done:
            self._left = True
            with suppress(SystemStopped):
                self._cancel()

    async def _read(self, found: Pieces) -> Reply:
        try:
            async with aclosing(found):
                async for piece in found:
                    if isinstance(piece, Reply):
                        return piece
                    self._pieces.put_nowait(piece)
            raise AssertionError("a turn without a reply")
        finally:
            self._pieces.put_nowait(None)


class ClusterStream:
    """Iterates over pieces whose texts add up to the reply's text. One reader; any thread. Closing
    early, or letting it go, cancels the turn of `reading`."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    @property
    def reply(self) -> Reply:
        """The finished turn's Reply; waits for it. Raises what the turn failed with."""
        reply: Reply = self._reading.reply.get()
        return reply

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TextPiece:
        piece = self._reading.loop.run(self._reading.next())
        if piece is None:
            self._reading.reply.get()
            raise StopIteration
        return piece

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
        """Stop reading; a turn that still runs is cancelled and replies with what there is."""
        self._reading.leave()


class AsyncClusterStream:
    """A ClusterStream under asyncio. Closing early, letting it go, or cancelling the task that
    reads cancels the turn of `reading`."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    @property
    def reply(self) -> Reply:
        """The turn's Reply, once it was read to its end. Raises BlockingCall before."""
        if not self._reading.reply.done:
            raise BlockingCall("the turn has not ended: read the stream to its end, or aclose() it")
        reply: Reply = self._reading.reply.get()
        return reply

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TextPiece:
        try:
            piece = await self._reading.loop.begin(self._reading.next()).future
            if piece is None:
                await self._reading.reply
                raise StopAsyncIteration
        except BaseException:
            self._reading.leave()
            raise
        return piece

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
        self._reading.leave()

    async def aclose(self) -> None:
        """Stop reading; a turn that still runs is cancelled and replies with what there is. Returns
        when it has."""
        self._reading.leave()
        with suppress(KvactorsError):
            await self._reading.reply
