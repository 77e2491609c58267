"""`/v1/responses`: what is asked, and what comes of it, now and later."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from sse_starlette import ServerSentEvent

from kvactors.actors.errors import AgentNotStored
from kvactors.actors.frontends.server.exchange.answers import Answer, Answers
from kvactors.actors.frontends.server.wire.asking import (
    PING_SECONDS,
    beside,
    client_of,
    ignored,
    meaning,
    read_body,
    reuse_headers,
    streamed,
    while_there,
)
from kvactors.actors.frontends.server.wire.errors import Failure, refused
from kvactors.actors.frontends.server.wire.models import Named
from kvactors.actors.frontends.server.wire.responses.body import (
    Past,
    ResponseBody,
    inquiry_of,
    skipped,
)
from kvactors.actors.frontends.server.wire.responses.conversations import (
    conversation_routes,
    found,
)
from kvactors.actors.frontends.server.wire.responses.items import given_back, listed, page
from kvactors.actors.frontends.server.wire.responses.references import followed
from kvactors.actors.frontends.server.wire.responses.store import ResponseStore
from kvactors.actors.frontends.server.wire.responses.telling import (
    PREFIX,
    Keep,
    Telling,
    streamed_events,
)

__all__ = ["responses_routes"]

# The field that says how to answer.
_MANNER = {"effort": "reasoning.effort", "thinks": "reasoning.effort"}
# Codex gives up when no data comes for long; comments are none.
_PING = ServerSentEvent(data='{"type":"ping"}')


def responses_routes(
    answers: Answers, named: Named, store: ResponseStore, *, ping_seconds: float = PING_SECONDS
) -> APIRouter:
    """The interface over `answers` of the models `named`; what it keeps is in the `store`. A stream
    gives a sign of life every `ping_seconds`."""
    router = APIRouter(tags=["OpenAI"])
    router.include_router(conversation_routes(store))

    @router.post("/v1/responses")
    async def create(request: Request) -> Response:
        body = await read_body(request, ResponseBody)
        model = named.check(body.model)
        past = await _past(request, body, store)
        asked = body
        # Its metadata is kept with it.
        but = ("client_metadata", "user")
        key = await beside(request, lambda: meaning(request, asked, but=but))
        body = await followed(body, client_of(request).tenant, store)
        answer = await _opened(answers, request, body, past, key)
        keep = _keeper(request, body, past, answer, store)
        headers = reuse_headers(answer.opened, ignored(body, *skipped(body)), _MANNER)
        telling = Telling(answer, body, model, _conversation_id(body))
        if body.stream:
            events = streamed_events(telling.events(keep))
            return streamed(events, lambda: _PING, headers, every=ping_seconds)
        response = await while_there(request, telling.whole(keep))
        return JSONResponse(response, headers=headers)

    @router.post("/v1/responses/input_tokens")
    async def input_tokens(request: Request) -> dict[str, Any]:
        body = await read_body(request, ResponseBody)
        named.check(body.model)
        past = await _past(request, body, store)
        if past.goes_on:
            raise refused("previous_response_id", "give the whole conversation to be counted")
        body = await followed(body, client_of(request).tenant, store)
        inquiry = await beside(request, lambda: inquiry_of(request, body, past))
        counted = await asyncio.to_thread(answers.count, inquiry)
        return {"object": "response.input_tokens", "input_tokens": counted}

    @router.get("/v1/responses/{response_id}")
    async def retrieve(request: Request, response_id: str, stream: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002
        if stream:
            raise refused("stream", "a response that was given is not streamed again")
        return await _kept(request, response_id, store)

    @router.post("/v1/responses/{response_id}/cancel")
    async def cancel(request: Request, response_id: str) -> dict[str, Any]:
        # None is given in the background: what is kept has ended.
        return await _kept(request, response_id, store)

    @router.delete("/v1/responses/{response_id}")
    async def delete(request: Request, response_id: str) -> dict[str, Any]:
        await found(request, response_id, "response", store)
        await store.remove(client_of(request).tenant, response_id)
        return {"id": response_id, "object": "response.deleted", "deleted": True}

    @router.get("/v1/responses/{response_id}/input_items")
    async def input_items(
        request: Request, response_id: str, after: str = "", limit: int = 20, order: str = "desc"
    ) -> dict[str, Any]:
        await found(request, response_id, "response", store)
        return page(await store.items(response_id), after=after, limit=limit, order=order)

    return router


async def _kept(request: Request, response_id: str, store: ResponseStore) -> dict[str, Any]:
    """A response as it was given. Raises Failure."""
    record = await found(request, response_id, "response", store)
    response: dict[str, Any] = record["response"]
    return response


async def _past(request: Request, body: ResponseBody, store: ResponseStore) -> Past:
    """What a request goes on. Raises Failure."""
    conversation, previous = _conversation_id(body), body.previous_response_id
    if conversation and previous:
        raise refused("previous_response_id", "it and conversation exclude each other")
    if conversation:
        await found(request, conversation, "conversation", store)
        return Past(items=tuple(await store.items(conversation)))
    if not previous:
        return Past()
    record = await store.find(client_of(request).tenant, previous)
    if record is None or "response" not in record:
        raise _unknown(previous)
    return Past(previous.removeprefix(PREFIX), record["instructions"])


async def _opened(
    answers: Answers, request: Request, body: ResponseBody, past: Past, key: str
) -> Answer:
    """The turn of a `request` with a `body` behind its `past`; `key` as `Answers.open` has it."""
    try:
        inquiry = await beside(request, lambda: inquiry_of(request, body, past))
        return await answers.open(inquiry, key=key)
    except AgentNotStored as error:
        if not past.goes_on:
            raise
        raise _unknown(body.previous_response_id or "") from error


def _keeper(
    request: Request, body: ResponseBody, past: Past, answer: Answer, store: ResponseStore
) -> Keep:
    """What keeps the response of an `answer` to a `request` with a `body` behind its `past` in the
    `store`, and tells its conversation."""
    tenant, conversation = client_of(request).tenant, _conversation_id(body)
    given = given_back(listed(body.input, "input"), f"{answer.opened.answer_id}_in")
    standing = body.instructions or past.instructions

    async def keep(response: dict[str, Any]) -> None:
        if body.store is not False:
            record = {"response": response, "instructions": standing}
            await store.keep(tenant, response["id"], record, given)
        if conversation and response["status"] != "failed":
            await store.add(conversation, [*given, *response["output"]])

    return keep


def _conversation_id(body: ResponseBody) -> str:
    asked = body.conversation
    named = asked.get("id") if isinstance(asked, dict) else asked or ""
    if not isinstance(named, str):
        raise refused("conversation", "give the id of a conversation")
    return named


def _unknown(response_id: str) -> Failure:
    return Failure(
        404,
        f"previous_response_id: no response {response_id!r} is kept here, or none that can be gone "
        "on (store: false keeps none, and old ones leave); send the whole conversation as input",
        "previous_response_id",
        "previous_response_not_found",
    )
