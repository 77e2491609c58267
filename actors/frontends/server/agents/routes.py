"""The routes of `/agents`. The event loop."""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from sse_starlette import ServerSentEvent

from kvactors.actors.agents.handle import Agent
from kvactors.actors.frontends.server.agents.bodies import (
    AgentDetail,
    AgentList,
    AgentView,
    ForkBody,
    ObserveBody,
    Remembered,
    RewindBody,
    SpawnBody,
    TranscriptAnswer,
    TurnAnswer,
    TurnBody,
    entries,
    listed,
)
from kvactors.actors.frontends.server.agents.owned import OwnedAgents, end_of
from kvactors.actors.frontends.server.agents.turns import Turns
from kvactors.actors.frontends.server.answering.service import Service
from kvactors.actors.frontends.server.wire.asking import (
    BoundedRoute,
    Download,
    streamed,
    while_there,
)
from kvactors.actors.frontends.server.wire.errors import refused
from kvactors.actors.turns.options import observing

__all__ = ["agent_routes"]

# FastAPI and Starlette read a path's end off it, so that ids may have slashes.
ONE = "/agents/{agent_id:path}"
LISTED = 200
TURN_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "With `stream`: events `text` {text, tokens}, then `end` with this answer, "
        "or `error`.",
        "content": {"text/event-stream": {}},
    },
    409: {"description": "The agent is busy with another request."},
}
BINARY = "application/octet-stream"
UPLOAD = {"requestBody": {"content": {BINARY: {}}, "required": True}}
# Bytes of a file that are sent at once.
PIECE = 1 << 20


def agent_routes(service: Service) -> APIRouter:
    """The interface over the agents of a `service`."""
    router = APIRouter(tags=["Agents"], route_class=BoundedRoute)
    turns = Turns()

    def owned_by(request: Request) -> OwnedAgents:
        return OwnedAgents(service, str(getattr(request.state, "tenant", "")))

    Owned = Annotated[OwnedAgents, Depends(owned_by)]

    @router.get("/agents")
    async def list_agents(
        owned: Owned, q: str = "", limit: Annotated[int, Query(ge=1, le=10_000)] = LISTED
    ) -> AgentList:
        """Agents, stored or not, the last used first; `q` is a part of their ids."""
        return await asyncio.to_thread(listed, await owned.every(), owned.shown, q, limit)

    @router.post("/agents", status_code=201)
    async def spawn_agent(owned: Owned, body: SpawnBody) -> AgentDetail:
        """A new agent, or one that begins with another's memory (`from`, `at`)."""
        policy = body.policy()
        if body.from_ is None:
            if body.at is not None:
                raise refused("at", "says how much is kept of the agent that `from` names")
            name = await owned.spawn(body.id, body.system_prompt, policy)
        else:
            if body.system_prompt is not None:
                raise refused("system_prompt", "a fork has its parent's: leave it out")
            name = await owned.fork(body.from_, body.id, body.at, policy)
        return await _detail(owned, name)

    @router.get(f"{ONE}/transcript")
    async def transcript(owned: Owned, agent_id: str) -> TranscriptAnswer:
        """What it remembers, turn by turn, and where the KV of each turn is."""
        agent, state = await owned.agent(agent_id), await owned.state(agent_id)
        told = entries(agent.transcript().turns, state)
        return TranscriptAnswer(id=agent_id, system_prompt=agent.system_prompt, turns=told)

    @router.post(f"{ONE}/turns", responses=TURN_ANSWERS, response_model=TurnAnswer)
    async def take_turn(owned: Owned, request: Request, agent_id: str, body: TurnBody) -> Response:
        """Ask it something. Going away ends the turn; what was decoded is remembered."""
        turn = await turns.open(owned, agent_id, body)
        if body.stream:
            return streamed(turn.events(), lambda: ServerSentEvent(comment="ping"), {})
        answer = await while_there(request, turn.answer())
        return JSONResponse(answer.model_dump())

    @router.post(f"{ONE}/observe")
    async def observe(owned: Owned, agent_id: str, body: ObserveBody) -> Remembered:
        """Let it remember something without an answer."""
        agent = await owned.agent(agent_id)
        turn = observing(agent.host.info, body.text, body.role)
        async with owned.service.claims.hold(agent.agent_id):
            await agent.open_turn(replace(turn, tenant=owned.tenant)).reply
            return _remembered(agent)

    @router.post(f"{ONE}/rewind")
    async def rewind(owned: Owned, agent_id: str, body: RewindBody) -> Remembered:
        """Forget the end of what it remembers: one exchange, if nothing is said."""
        if len(body.model_fields_set) > 1:
            raise refused("to_token", "only one of keep, exchanges and to_token can be given")
        agent = await owned.agent(agent_id)
        async with owned.service.claims.hold(agent.agent_id):
            to_token = body.to_token if body.keep is None else end_of(agent, body.keep)
            await agent.rewind(body.exchanges, to_token=to_token)
            return _remembered(agent)

    @router.post(f"{ONE}/fork", status_code=201)
    async def fork(owned: Owned, agent_id: str, body: ForkBody) -> AgentDetail:
        """A new agent that remembers the same, or the first turns of it, without a copy."""
        return await _detail(owned, await owned.fork(agent_id, body.id, body.at))

    @router.post(f"{ONE}/prefetch", status_code=202)
    async def prefetch(owned: Owned, agent_id: str) -> dict[str, str]:
        """Read its KV ahead of its next turn, if there is room."""
        await owned.prefetch(agent_id)
        return {"id": agent_id}

    @router.get(f"{ONE}/export", response_class=StreamingResponse)
    async def export(owned: Owned, agent_id: str, format: str = "archive") -> StreamingResponse:
        """Download it: "archive" is all there is; the others are tokens and KV."""
        suffix = ".kvagent" if format == "archive" else ".safetensors"
        with tempfile.TemporaryDirectory(prefix="kvactors-") as folder:
            path = Path(folder) / f"agent{suffix}"
            await owned.export(agent_id, path, format)
            # It has no name any more while it is sent: nothing stays, however that ends.
            file = path.open("rb")
        headers = {
            "Content-Length": str(os.fstat(file.fileno()).st_size),
            "Content-Disposition": f"attachment; filename*=utf-8''{quote(agent_id + suffix)}",
        }
        return Download(_pieces(file), headers=headers, media_type=BINARY)

    @router.post(f"{ONE}/import", status_code=201, openapi_extra=UPLOAD)
    async def import_(
        owned: Owned, request: Request, agent_id: str, format: str | None = None
    ) -> AgentDetail:
        """Make it of an uploaded file: whole and warm, or not at all."""
        with tempfile.TemporaryDirectory(prefix="kvactors-") as folder:
            path = Path(folder) / "agent.safetensors"
            with path.open("xb") as file:
                async for chunk in request.stream():
                    await asyncio.to_thread(file.write, chunk)
            name = await owned.import_file(agent_id, path, format)
        return await _detail(owned, name)

    @router.get(ONE)
    async def get_agent(owned: Owned, agent_id: str) -> AgentDetail:
        """One agent: its tier, and what of it is in memory and on disk."""
        return await _detail(owned, agent_id)

    @router.delete(ONE, status_code=204)
    async def forget(owned: Owned, agent_id: str) -> Response:
        """Delete it from memory and disk; not while it answers (409)."""
        await owned.forget(agent_id)
        return Response(status_code=204)

    return router


async def _detail(owned: OwnedAgents, agent_id: str) -> AgentDetail:
    agent, state = await owned.agent(agent_id), await owned.state(agent_id)
    view, context = AgentView.of(agent_id, state), owned.system.spec.context
    return AgentDetail(agent=view, system_prompt=agent.system_prompt, context=context)


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    with file:
        yield from iter(partial(file.read, PIECE), b"")


def _remembered(agent: Agent) -> Remembered:
    seen = agent.transcript()
    return Remembered(turns=len(seen.turns), tokens=len(seen.token_ids))
