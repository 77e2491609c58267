"""A turn's text, piece by piece, from another node: on a thread, or under asyncio."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Any, NoReturn, Self

from kvactors.actors.cluster.machine.known import as_known
from kvactors.actors.cluster.machine.loop import LoopThread
from kvactors.actors.cluster.protocol.errors import HostFailed
from kvactors.actors.turns.checks import stays_here
from kvactors.actors.turns.reply import Reply
from kvactors.actors.turns.stream import TextPiece
from kvactors.core.errors import BlockingCall

__all__ = ["AsyncClusterStream", "ClusterStream", "Pieces", "pieces"]

Pieces = AsyncGenerator[TextPiece | Reply, None]
"""What is shown of a turn, and its reply as the last."""


async def pieces(
    items: AsyncIterator[Mapping[str, Any]], reply_of: Callable[[dict[str, Any]], Reply]
) -> Pieces:
    """Of the `items` of the protocol's client, whose answer `reply_of` makes a reply of. A turn
    that was begun again on another node says the same again: that is shown once."""
    shown, again = 0, 0
    async for item in items:
        if "again" in item:
            again = 0
        elif "answer" in item:
            if rest := item["answer"]["text"][shown:]:
                yield TextPiece(rest, ())
            yield reply_of(dict(item))
            return
        elif "text" in item:
            again += len(item["text"])
            if again > shown:
                yield TextPiece(item["text"][shown - again :], tuple(item["tokens"]))
                shown = again


class ClusterStream:
    """Iterates over pieces whose texts add up to the reply's text. One reader; any thread."""

    def __init__(self, loop: LoopThread, found: Pieces) -> None:
        self._end = _End(found)
        self._loop = loop

    @property
    def reply(self) -> Reply:
        """The turn's Reply; reads what is left. Raises what the turn failed with."""
        for _ in self:
            pass
        return self._end.given()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TextPiece:
        piece = self._loop.run(self._end.next())
        if piece is None:
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

    def close(self) -> None:
        """Stop reading. The turn goes on where it runs."""
        self._loop.run(self._end.close())


class AsyncClusterStream:
    """A ClusterStream under asyncio."""

    def __init__(self, loop: LoopThread, found: Pieces) -> None:
        self._end = _End(found)
        self._loop = loop

    @property
    def reply(self) -> Reply:
        """The turn's Reply, once it was read to its end. Raises BlockingCall before."""
        return self._end.given()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TextPiece:
        piece = await self._loop.begin(self._end.next()).future
        if piece is None:
            raise StopAsyncIteration
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

    async def aclose(self) -> None:
        """Stop reading. The turn goes on where it runs."""
        await self._loop.begin(self._end.close()).future


class _End:
    """Reads on the loop that the pieces come on, and keeps the reply."""

    def __init__(self, found: Pieces) -> None:
        self._found = found
        self._reply: Reply | None = None

    async def next(self) -> TextPiece | None:
        try:
            found = await anext(self._found, None)
        except HostFailed as error:
            raise as_known(error) from error
        if isinstance(found, Reply):
            self._reply = found
            await self._found.aclose()
            return None
        return found

    async def close(self) -> None:
        await self._found.aclose()

    def given(self) -> Reply:
        if self._reply is None:
            raise BlockingCall("the turn has not ended: read the stream to its end")
        return self._reply
