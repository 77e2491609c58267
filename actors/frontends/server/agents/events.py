"""`/events`: how the system is, each second, and what happens in it, as server-sent events.

One watch for all readers: it listens and asks while anybody reads. The event loop; the system tells
it of events on its own threads. No event holds text of a turn.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response
from sse_starlette import ServerSentEvent

from kvactors.actors.frontends.server.agents.owned import OwnedAgents
from kvactors.actors.frontends.server.answering.home import of_nobody
from kvactors.actors.frontends.server.answering.service import Service
from kvactors.actors.frontends.server.wire.asking import streamed
from kvactors.actors.system.system import AgentSystem
from kvactors.core.errors import SystemStopped
from kvactors.core.trace import (
    Evicted,
    Fault,
    RestoreEnded,
    SaveEnded,
    TraceEvent,
    TurnEnded,
    TurnQueued,
    TurnStarted,
)

__all__ = ["event_routes"]

logger = logging.getLogger(__name__)

EVERY = 1.0
# Of one reader; who is slower misses some.
MOST_WAITING = 1000
_NAMES: dict[type, str] = {
    TurnQueued: "queued",
    TurnStarted: "started",
    TurnEnded: "ended",
    RestoreEnded: "restored",
    SaveEnded: "saved",
    Evicted: "evicted",
    Fault: "fault",
}
Told = tuple[str, dict[str, Any]]


def event_routes(service: Service, system: AgentSystem) -> APIRouter:
    """The route over a `service` of this `system`."""
    router, watch = APIRouter(tags=["Agents"]), Watch(service, system)

    @router.get("/events", responses={200: {"content": {"text/event-stream": {}}}})
    async def events(request: Request) -> Response:
        """`snapshot` each second: health, counts and bytes by tier, rates, the turns that run; and
        `queued`, `started`, `ended`, `restored`, `saved`, `evicted`, `fault` as they happen. With
        API keys there is nothing of other keys' agents in it, nor a sum over them."""
        if service.claims.closing:
            raise SystemStopped("the server is stopping")
        owned = OwnedAgents(service, str(getattr(request.state, "tenant", "")))
        return streamed(watch.read(owned), lambda: ServerSentEvent(comment="ping"), {})

    return router


class Watch:
    """Reads a `service`'s `system` for whoever looks."""

    def __init__(self, service: Service, system: AgentSystem) -> None:
        self._service = service
        self._parts = system.parts
        self._readers = set[asyncio.Queue[Told]]()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asking: asyncio.Task[None] | None = None

    async def read(self, owned: OwnedAgents) -> AsyncGenerator[ServerSentEvent, None]:
        """What may be told to the key of those `owned`, from now on."""
        queue = asyncio.Queue[Told](MOST_WAITING)
        self._join(queue)
        try:
            while not self._service.claims.closing:
                name, content = await queue.get()
                if name == "closing":
                    break
                if (seen := await _seen(owned, name, content)) is not None:
                    yield ServerSentEvent(event=name, data=json.dumps(seen))
        finally:
            self._leave(queue)

    def _join(self, queue: asyncio.Queue[Told]) -> None:
        self._readers.add(queue)
        if self._asking is None:
            self._loop = asyncio.get_running_loop()
            self._parts.lifecycle.tracer.listen(self._hear, steps=False)
            self._asking = asyncio.create_task(self._ask())

    def _leave(self, queue: asyncio.Queue[Told]) -> None:
        self._readers.discard(queue)
        if not self._readers and self._asking is not None:
            self._parts.lifecycle.tracer.leave(self._hear)
            self._asking.cancel()
            self._asking = None

    def _hear(self, event: TraceEvent) -> None:
        """On the thread where it happened."""
        name = _NAMES.get(type(event))
        if name is not None and self._loop is not None and not self._loop.is_closed():
            told = {**asdict(event), "at": time.time()}
            self._loop.call_soon_threadsafe(self._tell, (name, told))

    def _tell(self, told: Told) -> None:
        for queue in self._readers:
            if not queue.full():
                queue.put_nowait(told)

    async def _ask(self) -> None:
        """Tell how the system is, until nobody reads."""
        try:
            while not self._service.claims.closing:
                self._tell(("snapshot", await asyncio.to_thread(self._parts.watching.snapshot)))
                await asyncio.sleep(EVERY)
        except SystemStopped:
            pass
        except Exception:
            logger.exception("/events ends: how the system is cannot be said")
        # Readers would hold up the server's end.
        self._tell(("closing", {}))


async def _seen(owned: OwnedAgents, name: str, content: dict[str, Any]) -> dict[str, Any] | None:
    """What the key may see of an event; None for nothing."""
    if name == "snapshot":
        turns = [await _seen(owned, "turn", turn) for turn in content["turns"] or ()]
        shown = {**content, "turns": [turn for turn in turns if turn]}
        if owned.tenant:
            shown |= {"stats": None, "agents": None, "outstanding_turns": None}
            shown["health"] = of_nobody(content["health"])
        return shown
    if not await owned.owns(content["agent_id"]):
        return None
    return {**content, "agent_id": owned.shown(content["agent_id"])}
