"""Several answers of one request at once. The event loop."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeVar

from kvactors.actors.frontends.server.exchange.answers import Answer
from kvactors.actors.frontends.server.exchange.events import Event

__all__ = ["AT_ONCE", "all_of", "together"]

# Events that wait for a slow reader.
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


async def together(answers: Sequence[Answer]) -> AsyncGenerator[tuple[int, Event], None]:
    """The events of `answers` as they come, each with the number of its answer. Raises what the
    first one fails with; leaving early lets go of all of them."""
    if len(answers) == 1:
        async for event in answers[0]:
            yield 0, event
        return
    queue = asyncio.Queue[tuple[int, Event | BaseException | None]](MOST_WAITING)

    async def read(number: int, answer: Answer) -> None:
        try:
            async for event in answer:
                await queue.put((number, event))
        except Exception as error:
            await queue.put((number, error))
        else:
            await queue.put((number, None))

    reading = [asyncio.create_task(read(n, answer)) for n, answer in enumerate(answers)]
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
