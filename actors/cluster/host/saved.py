"""Who is told when an agent's KV was written, and which turns have theirs on disk. On the loop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.reply import Reply
from kvactors.core.conversation.records import TOKEN_BYTES
from kvactors.core.errors import SystemStopped
from kvactors.persistence.files.naming import SEGMENT_NAME
from kvactors.persistence.store.store import Store

__all__ = ["SavedKV", "has_kv"]

logger = logging.getLogger(__name__)


class SavedKV:
    """Calls `listeners` with the ids of agents, one call at a time for each: what is written
    while they are at it is told once, when they are done."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[str], Awaitable[None]]] = []
        # Turns whose KV is not on disk yet, by agent and request.
        self._pending: dict[tuple[str, str], ReplyFuture[Reply]] = {}
        # True: there is more to tell.
        self._telling: dict[str, bool] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def cached(self, agent: str, request: str) -> bool | None:
        """Whether the KV of a turn of `agent`, the answer to `request`, is on disk, once it is or
        never will be. None: no such turn waits for its KV. Raises SaveFailed."""
        if (turn := self._pending.get((agent, request))) is None:
            return None
        reply: Reply = await turn
        cached: bool = await reply.cached
        return cached

    def follow(self, agent: str, request: str, turn: ReplyFuture[Reply]) -> None:
        """Tell when the KV of a turn of `agent`, the answer to `request`, is on disk. To be called
        on the loop."""
        loop = asyncio.get_running_loop()
        # One that is asked again is the first one's answer.
        self._pending.setdefault((agent, request), turn)

        def over(done: ReplyFuture[Any]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._over, agent, request, done.error)

        def ended(done: ReplyFuture[Reply]) -> None:
            if done.error is None:
                done.get().cached.on_done(over)
            else:
                over(done)

        turn.on_done(ended)

    def _over(self, agent: str, request: str, error: BaseException | None) -> None:
        self._pending.pop((agent, request), None)
        if error is None and self.listeners:
            self._written(agent)

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


def has_kv(agent: str, request: str, fingerprint: str, store: Store) -> bool:
    """Whether `store` has KV, of the model with this `fingerprint`, of the turn of `agent` that
    answered `request`: KV is written turn by turn. Persistence thread."""
    begins = _begins(store, agent, request)
    named = [name.split("/") for name in store.pieces.names(agent)]
    found = [SEGMENT_NAME.fullmatch(name) for model, name in named if model == fingerprint]
    ends = [int(match.group(2)) for match in found if match]
    return begins is not None and max(ends, default=0) > begins


def _begins(store: Store, agent: str, request: str) -> int | None:
    """Tokens before the turn, if there is one."""
    sizes: list[int] = []
    for record in store.read_ledger(agent) or ():
        del sizes[record.get("keep", len(sizes)) :]
        if record.get("request") == request:
            return sum(sizes)
        sizes += [len(entry["tokens"]) // TOKEN_BYTES for entry in record["turns"]]
    return None
