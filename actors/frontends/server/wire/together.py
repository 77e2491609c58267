"""The events of several answers at once. The event loop."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from kvactors.actors.frontends.server.exchange.answers import Answer
from kvactors.actors.frontends.server.exchange.events import Event

__all__ = ["together"]

# Events that wait for a slow reader.
MOST_WAITING = 16


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
