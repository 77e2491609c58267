"""`/v1/completions`, as the openai package speaks it, and those who measure models with it.
The event loop's thread alone."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from sse_starlette import ServerSentEvent

from kvactors.actors.frontends.server.exchange.completion import (
    Completed,
    Completes,
    Completion,
)
from kvactors.actors.frontends.server.exchange.events import TokenLogprob, Usage
from kvactors.actors.frontends.server.wire.asking import (
    client_of,
    ignored,
    ignored_header,
    read_body,
    streamed,
    while_there,
)
from kvactors.actors.frontends.server.wire.completions_body import CompletionBody, asked_of
from kvactors.actors.frontends.server.wire.errors import failed_late, whole
from kvactors.actors.frontends.server.wire.models import Named
from kvactors.actors.frontends.server.wire.together import all_of, together

__all__ = ["completion_routes"]

# Seconds that the first piece of a stream is waited for, so that what fails at once is a status.
OPENING = 1.0
_T = TypeVar("_T")


def completion_routes(completes: Completes, named: Named) -> APIRouter:
    """The interface over what `completes` texts, by the models `named`."""
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = await read_body(request, CompletionBody)
        model, asked = named.check(body.model), asked_of(body, client_of(request))
        headers = ignored_header(ignored(body, *body.unguided()))
        base = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        if body.stream:
            wanted = bool((body.stream_options or {}).get("include_usage"))
            pieces = await _opened(_pieces(completes, asked))
            chunks = _chunks(pieces, base, with_usage=wanted, times=body.n or 1)
            return streamed(chunks, lambda: ServerSentEvent(comment="ping"), headers)
        works = [partial(_choice, completes, i, one) for i, one in enumerate(asked)]
        choices = await while_there(request, all_of(works))
        usage = _usage([usage for _, usage in choices], body.n or 1)
        told = {**base, "choices": [choice for choice, _ in choices], "usage": usage}
        return JSONResponse(told, headers=headers)

    return router


async def _choice(
    completes: Completes, index: int, asked: Completion
) -> tuple[dict[str, Any], Usage]:
    """One text as a whole, and its usage."""
    text, tokens = "", list[TokenLogprob]()
    ended = Completed("length", Usage(0, 0, 0))
    async with aclosing(completes.complete(asked)) as pieces:
        async for told in pieces:
            if isinstance(told, Completed):
                ended = told
            else:
                text += told.text
                tokens += told.logprobs
    logprobs = _Logprobs(asked).tell(tokens)
    return _told(index, text, logprobs, _reason(ended)), ended.usage


async def _pieces(
    completes: Completes, asked: Sequence[Completion]
) -> AsyncGenerator[tuple[dict[str, Any], Usage | None], None]:
    """The choices of a stream's chunks, of all texts as they come, and at the end of each its
    usage."""
    places = list(map(_Logprobs, asked))
    async with aclosing(together([completes.complete(one) for one in asked])) as pieces:
        async for index, told in pieces:
            if isinstance(told, Completed):
                yield _told(index, "", None, _reason(told)), told.usage
            else:
                yield _told(index, told.text, places[index].tell(told.logprobs), None), None


async def _opened(pieces: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
    """The same pieces, once the first is there or has taken too long: what fails before is a
    status."""
    first = asyncio.ensure_future(anext(pieces))
    await asyncio.wait({first}, timeout=OPENING)
    if first.done():
        first.result()

    async def all_of_them() -> AsyncGenerator[_T, None]:
        async with aclosing(pieces):
            yield await first
            async for piece in pieces:
                yield piece

    return all_of_them()


async def _chunks(
    pieces: AsyncGenerator[tuple[dict[str, Any], Usage | None], None],
    base: dict[str, Any],
    *,
    with_usage: bool,
    times: int,
) -> AsyncGenerator[ServerSentEvent, None]:
    """The chunks of a stream."""
    usages = dict[int, Usage]()
    try:
        async with aclosing(pieces):
            async for choice, usage in pieces:
                if usage:
                    usages[choice["index"]] = usage
                yield _event({**base, "choices": [choice]})
        if with_usage:
            ordered = [usages[index] for index in sorted(usages)]
            yield _event({**base, "choices": [], "usage": _usage(ordered, times)})
    except Exception as error:
        yield _event(failed_late(error).body("openai"))
    yield ServerSentEvent(data="[DONE]")


class _Logprobs:
    """The log-probabilities of one text, where they are wanted, and where each token begins."""

    def __init__(self, asked: Completion) -> None:
        self._wanted = asked.sampling.top_logprobs is not None
        self._place = 0

    def tell(self, tokens: Sequence[TokenLogprob]) -> dict[str, list[Any]] | None:
        """Those of the next tokens."""
        if not self._wanted:
            return None
        offsets = []
        for token in tokens:
            offsets.append(self._place)
            self._place += len(token.text)
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [_top(token) for token in tokens],
            "text_offset": offsets,
        }


def _top(token: TokenLogprob) -> dict[str, float] | None:
    """By text: of those that say the same the likeliest."""
    if token.logprob is None:
        return None
    top: dict[str, float] = {}
    for _, text, logprob in token.top:
        top.setdefault(text, logprob)
    return top


def _told(
    index: int, text: str, logprobs: dict[str, list[Any]] | None, reason: str | None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _reason(ended: Completed) -> str:
    return "length" if whole(ended).reason == "length" else "stop"


def _usage(usages: Sequence[Usage], times: int) -> dict[str, Any]:
    """Of all texts; a prompt that is gone on with several `times` counts once."""
    prompt = sum(usage.prompt for usage in usages[::times])
    answered = sum(usage.answer for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answered,
        "total_tokens": prompt + answered,
        "prompt_tokens_details": {"cached_tokens": sum(one.cached for one in usages[::times])},
    }


def _event(content: dict[str, Any]) -> ServerSentEvent:
    return ServerSentEvent(data=json.dumps(content, ensure_ascii=False))
