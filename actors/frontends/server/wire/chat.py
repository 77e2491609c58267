"""`/v1/chat/completions`, as the openai package speaks it."""

import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from sse_starlette import ServerSentEvent

from kvactors.actors.frontends.server.exchange.answers import Answer, Answers
from kvactors.actors.frontends.server.exchange.events import (
    CallArguments,
    CallBegun,
    CallEnded,
    Ended,
    Event,
    Said,
    Thought,
    TokenLogprob,
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
from kvactors.actors.frontends.server.wire.chat_body import ChatBody, inquiry_of, skipped
from kvactors.actors.frontends.server.wire.errors import failed_late, whole
from kvactors.actors.frontends.server.wire.models import Named
from kvactors.actors.frontends.server.wire.together import all_of, together

__all__ = ["chat_routes", "logprob_of"]

# The field that says how to answer.
_MANNER = {"effort": "reasoning_effort", "thinks": "reasoning_effort"}
_REASONS = {"calls": "tool_calls"}


def chat_routes(answers: Answers, named: Named) -> APIRouter:
    """The interface over `answers` of the models `named`."""
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        body = await read_body(request, ChatBody)
        model = named.check(body.model)
        inquiry, key = await beside(
            request, lambda: (inquiry_of(request, body), meaning(request, body))
        )
        seed = inquiry.sampling.seed
        opened = await all_of(
            [
                partial(
                    answers.open,
                    replace(inquiry, sampling=replace(inquiry.sampling, seed=seed + number)),
                    key=f"{key}/{number}",
                )
                for number in range(body.n or 1)
            ]
        )
        headers = reuse_headers(opened[0].opened, ignored(body, *skipped(body)), _MANNER)
        if body.stream:
            wanted = bool((body.stream_options or {}).get("include_usage"))
            chunks = _chunks(opened, model, with_usage=wanted)
            return streamed(chunks, lambda: ServerSentEvent(comment="ping"), headers)
        works = [partial(_choice, i, answer) for i, answer in enumerate(opened)]
        choices = await while_there(request, all_of(works))
        return JSONResponse(
            {
                "id": _id(opened),
                "object": "chat.completion",
                "created": int(time.time()),
                "model": model,
                "choices": [choice for choice, _ in choices],
                "usage": _usage([usage for _, usage in choices]),
            },
            headers=headers,
        )

    return router


# -- what is answered ------------------------------------------------------------------


async def _choice(index: int, answer: Answer) -> tuple[dict[str, Any], Usage]:
    """One choice of a whole answer, and its usage."""
    said, thought = "", ""
    calls: list[dict[str, Any]] = []
    logprobs: list[dict[str, Any]] = []
    ended = Ended("stop", Usage(0, 0, 0))
    async for event in answer:
        if isinstance(event, Said):
            said += event.text
            logprobs += map(logprob_of, event.logprobs)
        elif isinstance(event, Thought):
            thought += event.text
        elif isinstance(event, CallBegun):
            calls.append(_tool_call(event, ""))
        elif isinstance(event, CallEnded):
            calls[event.index]["function"]["arguments"] = event.arguments
        elif isinstance(event, Ended):
            ended = whole(event)
    message: dict[str, Any] = {"role": "assistant", "content": said or (None if calls else "")}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    choice = {
        "index": index,
        "message": message,
        "finish_reason": _REASONS.get(ended.reason, ended.reason),
        "logprobs": {"content": logprobs} if logprobs else None,
    }
    return choice, ended.usage


async def _chunks(
    answers: list[Answer], model: str, *, with_usage: bool
) -> AsyncGenerator[ServerSentEvent, None]:
    """The chunks of a stream, those of all choices as they come."""
    base = {
        "id": _id(answers),
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model,
    }
    usages = []
    try:
        for index in range(len(answers)):
            yield _event({**base, "choices": [_delta(index, {"role": "assistant", "content": ""})]})
        async with aclosing(together([aiter(answer) for answer in answers])) as events:
            async for index, event in events:
                if isinstance(event, Ended):
                    usages.append(event.usage)
                if choice := _chunk(index, event):
                    yield _event({**base, "choices": [choice]})
        if with_usage:
            yield _event({**base, "choices": [], "usage": _usage(usages)})
    except Exception as error:
        yield _event(failed_late(error).body("openai"))
    yield ServerSentEvent(data="[DONE]")


def _chunk(index: int, event: Event) -> dict[str, Any] | None:
    """The choice of a chunk that tells an event, if one does."""
    if isinstance(event, Said):
        logprobs = {"content": list(map(logprob_of, event.logprobs))} if event.logprobs else None
        return _delta(index, {"content": event.text}, logprobs=logprobs)
    if isinstance(event, Thought):
        return _delta(index, {"reasoning_content": event.text})
    if isinstance(event, CallBegun):
        return _delta(index, {"tool_calls": [{"index": event.index, **_tool_call(event, "")}]})
    if isinstance(event, CallArguments):
        function = {"arguments": event.text}
        return _delta(index, {"tool_calls": [{"index": event.index, "function": function}]})
    if isinstance(event, Ended):
        reason = whole(event).reason
        return _delta(index, {}, reason=_REASONS.get(reason, reason))
    return None


def _delta(
    index: int,
    delta: dict[str, Any],
    *,
    reason: str | None = None,
    logprobs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": reason, "logprobs": logprobs}


def _tool_call(event: CallBegun, arguments: str) -> dict[str, Any]:
    function = {"name": event.name, "arguments": arguments}
    return {"id": event.call_id, "type": "function", "function": function}


def logprob_of(token: TokenLogprob) -> dict[str, Any]:
    def one(text: str, logprob: float | None) -> dict[str, Any]:
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    top = [one(text, logprob) for _, text, logprob in token.top]
    return {**one(token.text, token.logprob), "top_logprobs": top}


def _usage(usages: list[Usage]) -> dict[str, Any]:
    """Of all choices: their prompt counts once."""
    answered = sum(usage.answer for usage in usages)
    prompt, cached = (usages[0].prompt, usages[0].cached) if usages else (0, 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answered,
        "total_tokens": prompt + answered,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": sum(usage.thought for usage in usages)},
    }


def _id(answers: list[Answer]) -> str:
    return f"chatcmpl-{answers[0].opened.answer_id}"


def _event(content: dict[str, Any]) -> ServerSentEvent:
    return ServerSentEvent(data=json.dumps(content, ensure_ascii=False))
