"""Waiting for something, and not for ever."""

import asyncio
from typing import Any

from kvactors.actors.cluster.protocol.interfaces import Clock

__all__ = ["done_soon"]


async def done_soon(clock: Clock, what: asyncio.Future[Any], seconds: float) -> bool:
    """Whether `what` is done, once it is or so many `seconds` of the `clock` are over. One loop."""
    waiting = asyncio.ensure_future(clock.sleep(seconds))
    try:
        both: list[asyncio.Future[Any]] = [what, waiting]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return what.done()
