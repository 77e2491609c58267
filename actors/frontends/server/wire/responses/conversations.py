"""`/v1/conversations`: lists of items that responses go on, and are added to."""

import secrets
import time
from typing import Any

from fastapi import APIRouter, Request

from kvactors.actors.frontends.server.wire.asking import client_of, read_body
from kvactors.actors.frontends.server.wire.errors import Failure
from kvactors.actors.frontends.server.wire.reading import Body, Listed
from kvactors.actors.frontends.server.wire.responses.items import (
    Item,
    given_back,
    listed,
    messages_of,
    page,
)
from kvactors.actors.frontends.server.wire.responses.store import ResponseStore

__all__ = ["conversation_routes", "found"]

_ONE = "/v1/conversations/{conversation_id}"


class ConversationBody(Body):
    """A conversation's body: what it begins with, and what its client notes on it."""

    items: Listed[Any] | None = None
    metadata: dict[str, Any] | None = None


def conversation_routes(store: ResponseStore) -> APIRouter:
    """The interface over a `store`."""
    router = APIRouter()

    @router.post("/v1/conversations")
    async def create(request: Request) -> Item:
        body = await read_body(request, ConversationBody)
        conversation = {
            "id": f"conv_{secrets.token_hex(12)}",
            "object": "conversation",
            "created_at": int(time.time()),
            "metadata": body.metadata or {},
        }
        await _save(request, conversation, _items(body), store)
        return conversation

    @router.get(_ONE)
    async def retrieve(request: Request, conversation_id: str) -> Item:
        return await _conversation(request, conversation_id, store)

    @router.post(_ONE)
    async def update(request: Request, conversation_id: str) -> Item:
        conversation = await _conversation(request, conversation_id, store)
        body = await read_body(request, ConversationBody)
        conversation["metadata"] = body.metadata or {}
        await _save(request, conversation, [], store)
        return conversation

    @router.delete(_ONE)
    async def delete(request: Request, conversation_id: str) -> Item:
        await _conversation(request, conversation_id, store)
        await store.remove(client_of(request).tenant, conversation_id)
        return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}

    _item_routes(router, store)
    return router


def _item_routes(router: APIRouter, store: ResponseStore) -> None:
    """The routes of a conversation's items."""

    @router.post(f"{_ONE}/items")
    async def add(request: Request, conversation_id: str) -> Item:
        await _conversation(request, conversation_id, store)
        items = _items(await read_body(request, ConversationBody))
        await store.add(conversation_id, items)
        return page(items, order="asc", limit=len(items))

    @router.get(f"{_ONE}/items")
    async def items(
        request: Request, conversation_id: str, after: str = "", limit: int = 20,
        order: str = "desc",
    ) -> Item:  # fmt: skip
        await _conversation(request, conversation_id, store)
        return page(await store.items(conversation_id), after=after, limit=limit, order=order)

    @router.get(f"{_ONE}/items/{{item_id}}")
    async def item(request: Request, conversation_id: str, item_id: str) -> Item:
        await _conversation(request, conversation_id, store)
        for one in await store.items(conversation_id):
            if one["id"] == item_id:
                return one
        raise _missing("item", item_id)

    @router.delete(f"{_ONE}/items/{{item_id}}")
    async def delete(request: Request, conversation_id: str, item_id: str) -> Item:
        conversation = await _conversation(request, conversation_id, store)
        if not await store.remove_item(conversation_id, item_id):
            raise _missing("item", item_id)
        return conversation


async def found(request: Request, record_id: str, kind: str, store: ResponseStore) -> Item:
    """The record `record_id` of a `kind` in the `store`, if who makes the `request` has it. Raises
    Failure 404."""
    record = await store.find(client_of(request).tenant, record_id)
    if record is None or kind not in record:
        raise _missing(kind, record_id)
    return record


async def _conversation(request: Request, conversation_id: str, store: ResponseStore) -> Item:
    record = await found(request, conversation_id, "conversation", store)
    conversation: Item = record["conversation"]
    return conversation


async def _save(
    request: Request, conversation: Item, items: list[Item], store: ResponseStore
) -> None:
    """Keep a `conversation` that a `request` made or changed, with new `items`, in the `store`."""
    tenant, record = client_of(request).tenant, {"conversation": conversation}
    await store.keep(tenant, conversation["id"], record, items)


def _items(body: ConversationBody) -> list[Item]:
    """The items of a body, whole; only what can be said to a model. Raises Failure."""
    items = listed(body.items, "items")
    list(messages_of(items, "items"))
    return given_back(items, secrets.token_hex(12))


def _missing(kind: str, its_id: str) -> Failure:
    return Failure(404, f"there is no {kind} {its_id!r} here", f"{kind}_id", "not_found")
