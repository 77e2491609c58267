"""Several items of a stream in one of Ray's: one of those costs as much as ten tokens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import msgpack  # type: ignore[import-untyped]

__all__ = ["BEAT", "gathered", "scattered"]

WINDOW = 0.02
"""Seconds: what comes within them goes together. The first goes at once."""
BEAT = 1.0
"""Seconds of silence after which an empty piece says that there will be more."""


async def gathered(items: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The `items`, in order, as many in a piece as have come since the last one; of none, where
    none comes for long. One loop."""
    fresh: list[bytes] = []
    more = asyncio.Event()

    async def read() -> None:
        async for item in items:
            fresh.append(item)
            more.set()

    reading = asyncio.get_running_loop().create_task(read())
    reading.add_done_callback(lambda _: more.set())
    try:
        while fresh or not reading.done():
            if not fresh:
                with suppress(TimeoutError):
                    await asyncio.wait_for(more.wait(), BEAT)
                    more.clear()
                    continue
            piece = msgpack.packb(fresh)
            fresh.clear()
            yield piece
            await asyncio.wait({reading}, timeout=WINDOW)
        await reading
    finally:
        reading.cancel()


def scattered(piece: bytes) -> list[bytes]:
    """The items of a piece."""
    found: list[bytes] = msgpack.unpackb(piece)
    return found
