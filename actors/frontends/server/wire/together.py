"""Several answers of one request at once. The event loop."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

__all__ = ["AT_ONCE", "all_of", "together"]

# Items that wait for a slow reader.
MOST_WAITING = 16
# Works of one request that are begun at once: as many as a step of the engine takes, and others
# may be open beside them.
AT_ONCE = 64
_T = TypeVar("_T")


async def all_of(works: Sequence[Callable[[], Awaitable[_T]]]) -> list[_T]:
    """What all `works` return, in order. Raises what the first one fails with, when the others have
    been ended."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(work: Callable[[], Awaitable[_T]]) -> _T:
        async with places:
            return await work()

    tasks = list[asyncio.Task[_T]]()
    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(one(work)) for work in works]
    except BaseExceptionGroup as failed:
        # The error holds this frame, and nobody takes what the others have returned.
        tasks.clear()
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def together(
    sources: Sequence[AsyncGenerator[_T, None]],
) -> AsyncGenerator[tuple[int, _T], None]:
    """What comes of `sources` as it comes, each with the number of its source. Raises what the
    first one fails with; leaving early lets go of all of them."""
    if len(sources) == 1:
        async with aclosing(sources[0]) as items:
            async for item in items:
                yield 0, item
        return
    queue = asyncio.Queue[tuple[int, _T | BaseException | None]](MOST_WAITING)
    places = asyncio.Semaphore(AT_ONCE)

    async def read(number: int, source: AsyncGenerator[_T, None]) -> None:
        try:
            async with places, aclosing(source) as items:
                async for item in items:
                    await queue.put((number, item))
        except Exception as error:
            await queue.put((number, error))
        else:
            await queue.put((number, None))

    reading = [asyncio.create_task(read(n, source)) for n, source in enumerate(sources)]
    try:
        left = len(reading)
        while left:
            number, told = await queue.get()
            if isinstance(told, BaseException):
                raise told
            if told is None:
                left -= 1
            else:
                yield number, told
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
