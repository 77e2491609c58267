"""`/v1/messages` and `/v1/messages/count_tokens`, as the anthropic package speaks them.

`input_tokens` are those that were computed, cached ones are told apart: a client that adds both
counts none twice. `message_start` waits for true numbers; pings come before it.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from sse_starlette import ServerSentEvent

from kvactors.actors.frontends.server.exchange.answers import Answer, Answers
from kvactors.actors.frontends.server.exchange.events import (
    Begun,
    CallArguments,
    CallBegun,
    CallEnded,
    Ended,
    Event,
    Said,
    Thought,
    Usage,
)
from kvactors.actors.frontends.server.wire.asking import (
    beside,
    ignored,
    meaning,
    read_body,
    reuse_headers,
    streamed,
    while_there,
)
from kvactors.actors.frontends.server.wire.errors import failed_late, whole
from kvactors.actors.frontends.server.wire.messages_body import (
    CountBody,
    MessagesBody,
    inquiry_of,
    skipped,
)
from kvactors.actors.frontends.server.wire.models import Named

__all__ = ["messages_routes"]

# The fields that say how to answer.
_MANNER = {"effort": "output_config.effort", "thinks": "thinking"}
_REASONS = {"calls": "tool_use", "length": "max_tokens"}


def messages_routes(answers: Answers, named: Named) -> APIRouter:
    """The interface over `answers` of the models `named`."""
    router = APIRouter(tags=["Anthropic"])

    @router.post("/v1/messages")
    async def messages(request: Request) -> Response:
        body = await read_body(request, MessagesBody)
        model = named.check(body.model)
        inquiry, key = await beside(
            request, lambda: (inquiry_of(request, body), meaning(request, body))
        )
        answer = await answers.open(inquiry, key=key)
        headers = reuse_headers(answer.opened, ignored(body, *skipped(body)), _MANNER)
        if body.stream:
            ping = _event("ping", {})
            return streamed(_stream(answer, model, body), lambda: ping, headers)
        message = await while_there(request, _whole(answer, model, body))
        return JSONResponse(message, headers=headers)

    @router.post("/v1/messages/count_tokens")
    async def count_tokens(request: Request) -> dict[str, int]:
        body = await read_body(request, CountBody)
        named.check(body.model)
        inquiry = await beside(request, lambda: inquiry_of(request, body))
        return {"input_tokens": await asyncio.to_thread(answers.count, inquiry)}

    return router


async def _whole(answer: Answer, model: str, body: MessagesBody) -> dict[str, Any]:
    """The message as one object."""
    message, content = _message(answer, model), list[dict[str, Any]]()
    async for event in answer:
        if isinstance(event, Said):
            _block(content, "text")["text"] += event.text
        elif isinstance(event, Thought):
            if body.shows_thinking:
                _block(content, "thinking")["thinking"] += event.text
        elif isinstance(event, CallBegun):
            content.append(_tool_use(event))
        elif isinstance(event, CallEnded):
            content[-1]["input"] = json.loads(event.arguments or "{}")
        elif isinstance(event, Ended):
            message |= _stopped(event) | {"usage": _usage(event.usage)}
    return message | {"content": content}


def _block(content: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The last block, which is of this kind."""
    if not content or content[-1]["type"] != kind:
        content.append(_empty(kind))
    return content[-1]


async def _stream(
    answer: Answer, model: str, body: MessagesBody
) -> AsyncGenerator[ServerSentEvent, None]:
    """The message as events: one block after the other."""
    blocks = _Blocks()
    try:
        async for event in answer:
            if isinstance(event, Begun):
                usage = _usage(Usage(event.prompt_tokens, event.cached, 0))
                message = _message(answer, model) | {"usage": usage}
                yield _event("message_start", {"message": message})
            elif isinstance(event, Ended):
                # Who is told that a block is whole reads it at once: not of half an answer.
                delta = _stopped(event)
                for told in blocks.close():
                    yield told
                yield _event("message_delta", {"delta": delta, "usage": _usage(event.usage)})
                yield _event("message_stop", {})
            elif body.shows_thinking or not isinstance(event, Thought):
                for told in blocks.tell(event):
                    yield told
    except Exception as error:
        yield _event("error", failed_late(error).body("anthropic"))


class _Blocks:
    """Which block of a streamed message is open."""

    def __init__(self) -> None:
        self._index = -1
        self._kind = ""

    def tell(self, event: Event) -> list[ServerSentEvent]:
        """The events of a piece of the answer."""
        if isinstance(event, CallBegun):
            return self._open(_tool_use(event))
        if isinstance(event, CallArguments):
            return [self._delta({"type": "input_json_delta", "partial_json": event.text})]
        if isinstance(event, Said):
            opened = [] if self._kind == "text" else self._open(_empty("text"))
            return [*opened, self._delta({"type": "text_delta", "text": event.text})]
        if isinstance(event, Thought):
            opened = [] if self._kind == "thinking" else self._open(_empty("thinking"))
            return [*opened, self._delta({"type": "thinking_delta", "thinking": event.text})]
        return []

    def close(self) -> list[ServerSentEvent]:
        """The events that end the open block."""
        if not self._kind:
            return []
        signed = [self._delta({"type": "signature_delta", "signature": "kvactors"})]
        ended = [_event("content_block_stop", {"index": self._index})]
        return [*(signed if self._kind == "thinking" else []), *ended]

    def _open(self, block: dict[str, Any]) -> list[ServerSentEvent]:
        closed = self.close()
        self._index, self._kind = self._index + 1, block["type"]
        content = {"index": self._index, "content_block": block}
        return [*closed, _event("content_block_start", content)]

    def _delta(self, delta: dict[str, Any]) -> ServerSentEvent:
        return _event("content_block_delta", {"index": self._index, "delta": delta})


def _message(answer: Answer, model: str) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.opened.answer_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(Usage(0, 0, 0)),
    }


def _empty(kind: str) -> dict[str, Any]:
    signature = {"signature": "kvactors"} if kind == "thinking" else {}
    return {"type": kind, kind: "", **signature}


def _tool_use(event: CallBegun) -> dict[str, Any]:
    return {"type": "tool_use", "id": event.call_id, "name": event.name, "input": {}}


def _stopped(event: Ended) -> dict[str, Any]:
    reason = "stop_sequence" if event.stop else _REASONS.get(whole(event).reason, "end_turn")
    return {"stop_reason": reason, "stop_sequence": event.stop}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.answer,
    }


def _event(kind: str, content: dict[str, Any]) -> ServerSentEvent:
    data = json.dumps({"type": kind} | content, ensure_ascii=False)
    return ServerSentEvent(data=data, event=kind)
