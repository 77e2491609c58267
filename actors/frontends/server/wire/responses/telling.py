"""A response, event by event, from `response.created` to the one that ends it. The event loop.

Its ids are those of the answer, so that everyone who reads it, now or once more, reads the same.
"""

import itertools
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from sse_starlette import ServerSentEvent

from kvactors.actors.frontends.server.exchange.answers import Answer
from kvactors.actors.frontends.server.exchange.events import Ended, Event, Usage
from kvactors.actors.frontends.server.wire.errors import CANCELLED, failed_late
from kvactors.actors.frontends.server.wire.responses.body import ResponseBody
from kvactors.actors.frontends.server.wire.responses.output import Output, Told

__all__ = ["PREFIX", "Keep", "Telling", "streamed_events"]

logger = logging.getLogger(__name__)

PREFIX = "resp_"


Keep = Callable[[dict[str, Any]], Awaitable[None]]


class Telling:
    """An `answer`, told to who asked with a `body` of the `model` in the `conversation` of that id,
    if in one. Told once, from the first event to the last."""

    def __init__(
        self, answer: Answer, body: ResponseBody, model: str, conversation: str = ""
    ) -> None:
        self._answer = answer
        self._response = _response(answer, body, model, conversation)
        self._output = Output(self._new_id, summary=body.sums_up)
        self._ids = itertools.count(1)
        self._numbers = itertools.count()

    async def events(self, keep: Keep) -> AsyncIterator[Told]:
        """The events. What fails is the last of them; `keep` is called before that is told."""
        for told in (self._state("created"), self._state("in_progress")):
            yield told
        try:
            async for event in self._answer:
                for told in self._tell(event):
                    yield self._numbered(told)
        except Exception as error:
            self._response |= _failed(error)
            self._cut()
        yield await self._end(keep)

    async def whole(self, keep: Keep) -> dict[str, Any]:
        """The response at its end, when `keep` was called with it. What fails raises."""
        async for event in self._answer:
            for _ in self._tell(event):
                pass
        await self._end(keep)
        return self._response

    def _tell(self, event: Event) -> Iterator[Told]:
        if not isinstance(event, Ended):
            return self._output.tell(event)
        self._response |= _ended(event)
        if self._response["status"] == "failed":
            self._cut()
            return iter(())
        complete = self._response["status"] == "completed"
        return self._output.close_all("completed" if complete else "incomplete")

    def _cut(self) -> None:
        """End what is open. Nobody is told: who is told that a text is whole reads it at once."""
        for _ in self._output.close("incomplete"):
            pass

    async def _end(self, keep: Keep) -> Told:
        """The last event, once what it tells is kept."""
        self._response["output"] = self._output.items
        try:
            await keep(self._response)
        except Exception as error:
            # Who waited for it gets it, and is told that nobody can ask for it later.
            logger.error("a response was given that could not be kept", exc_info=error)
            self._response["store"] = False
        return self._state(self._response["status"])

    def _state(self, kind: str) -> Told:
        return self._numbered({"type": f"response.{kind}", "response": dict(self._response)})

    def _numbered(self, told: Told) -> Told:
        return {**told, "sequence_number": next(self._numbers)}

    def _new_id(self, prefix: str) -> str:
        return f"{prefix}_{self._answer.opened.answer_id}_{next(self._ids)}"


def _response(answer: Answer, body: ResponseBody, model: str, conversation: str) -> dict[str, Any]:
    """A response before anything is answered: that of an `answer` to a `body`, of the `model`, in a
    `conversation`."""
    return {
        "id": f"{PREFIX}{answer.opened.answer_id}",
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "conversation": {"id": conversation} if conversation else None,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": body.reasoning or {"effort": None, "summary": None},
        "store": body.store is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": body.text or {"format": {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
    }


async def streamed_events(events: AsyncIterator[Told]) -> AsyncGenerator[ServerSentEvent, None]:
    """`events` as they are sent, each under its name."""
    async for event in events:
        data = json.dumps(event, ensure_ascii=False)
        yield ServerSentEvent(data=data, event=event["type"])


def _ended(ended: Ended) -> dict[str, Any]:
    """What of a response says how it ended."""
    usage = _usage(ended.usage)
    if ended.reason == "cancelled":
        error = {"code": "server_error", "message": CANCELLED}
        return {"status": "failed", "error": error, "usage": usage}
    if ended.reason == "length":
        details = {"reason": "max_output_tokens"}
        return {"status": "incomplete", "incomplete_details": details, "usage": usage}
    return {"status": "completed", "completed_at": int(time.time()), "usage": usage}


def _failed(error: Exception) -> dict[str, Any]:
    failure = failed_late(error)
    code = failure.code or ("invalid_prompt" if failure.status == 400 else "server_error")
    return {"status": "failed", "error": {"code": code, "message": failure.message}}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {
            "cached_tokens": usage.cached,
            "cache_write_tokens": usage.prompt - usage.cached,
        },
        "output_tokens": usage.answer,
        "output_tokens_details": {"reasoning_tokens": usage.thought},
        "total_tokens": usage.prompt + usage.answer,
    }
