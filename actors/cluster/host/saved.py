"""Who is told when an agent's KV was written. On the loop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.reply import Reply
from kvactors.core.errors import SystemStopped

__all__ = ["SavedKV"]

logger = logging.getLogger(__name__)


class SavedKV:
    """Calls `listeners` with the ids of agents, one call at a time for each: what is written
    while they are at it is told once, when they are done."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[str], Awaitable[None]]] = []
        # True: there is more to tell.
        self._telling: dict[str, bool] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def follow(self, agent: str, turn: ReplyFuture[Reply]) -> None:
        """Tell when the KV of a turn of `agent` is on disk. To be called on the loop."""
        loop = asyncio.get_running_loop()

        def written(cached: ReplyFuture[bool]) -> None:
            if cached.error is None and not loop.is_closed():
                loop.call_soon_threadsafe(self._written, agent)

        def ended(done: ReplyFuture[Reply]) -> None:
            if done.error is None:
                done.get().cached.on_done(written)

        turn.on_done(ended)

    def _written(self, agent: str) -> None:
        if agent in self._telling:
            self._telling[agent] = True
            return
        self._telling[agent] = False
        task = asyncio.create_task(self._tell(agent))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, agent: str) -> None:
        try:
            for listener in self.listeners:
                await listener(agent)
        except SystemStopped:
            logger.debug("the KV of %r was written at the system's end: nobody is told", agent)
        except Exception:
            logger.exception("the KV of %r was written, and who was told raised", agent)
        finally:
            again = self._telling.pop(agent)
        if again:
            self._written(agent)
