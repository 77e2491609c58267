"""What every interface does with a request: read it, name what is ignored, wait for its answer."""

import asyncio
import json
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import xxhash
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Message, Send

from kvactors.actors.frontends.server.exchange.events import Opened
from kvactors.actors.frontends.server.exchange.inquiry import Client
from kvactors.actors.frontends.server.wire.errors import Failure, refused
from kvactors.actors.frontends.server.wire.reading import Body, content_of, record_of

__all__ = [
    "PING_SECONDS",
    "BoundedRoute",
    "Download",
    "beside",
    "client_of",
    "ignored",
    "ignored_header",
    "meaning",
    "read_body",
    "readable",
    "reuse_headers",
    "streamed",
    "while_there",
]

# Seconds between two signs of life: clients show a stall after 20.
PING_SECONDS = 10
# Seconds that a reader may leave its stream unread.
SEND_SECONDS = 120
# Bytes of a body that is read beside the event loop: others would wait for it.
BESIDE = 256 << 10
# What is read of an agent: the path of one whose name ends like this says another's.
READ = ("/transcript", "/export")
# Characters of a header of ours.
MOST_SHOWN = 1000
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
_T = TypeVar("_T")
_B = TypeVar("_B", bound=Body)


async def read_body(request: Request, kind: type[_B]) -> _B:
    """The JSON body of a `request` as a record of this `kind`. Raises Failure 400 with the field
    named, or 413."""
    raw = await request.body()
    return await beside(request, lambda: record_of(raw, kind))


async def beside(request: Request, work: Callable[[], _T]) -> _T:
    """What `work` makes of a `request`'s body: beside the event loop if that is large."""
    large = len(await request.body()) > BESIDE
    return await asyncio.to_thread(work) if large else work()


class BoundedRoute(APIRoute):
    """A route whose body FastAPI reads itself: not before it is known to be in bounds."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As FastAPI has it."""
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            if self.body_field is not None:
                raw = await request.body()
                await beside(request, lambda: content_of(raw))
            return await handle(request)

        return bounded


def ignored(body: Body, *more: str) -> list[str]:
    """The fields of a `body` that change nothing: unknown ones that are set, those of a stream but
    for its usage, and `more`."""
    fields = dict(body.model_extra or {})
    options = vars(body).get("stream_options") or {}
    fields |= {
        f"stream_options.{name}": options[name] for name in options if name != "include_usage"
    }
    return [name for name, value in fields.items() if value] + list(more)


def meaning(request: Request, body: Body, *, but: Collection[str] = ("metadata", "user")) -> str:
    """A hash that two requests share which ask the same: of the `request`'s path and API key, and
    of its `body`, fields without meaning (`but`) aside."""
    content = {k: v for k, v in body.model_dump().items() if k not in but}
    said = [request.url.path, _tenant(request), _named(request), content]
    return xxhash.xxh3_128_hexdigest(json.dumps(said, sort_keys=True, default=str).encode())


def client_of(request: Request, cache_key: str | None = None) -> Client:
    """Who asks, by the headers of a `request` and its body's `cache_key`."""
    header = request.headers.get
    first = next((found for name in _THREADS if (found := header(name))), "")
    parent = next((found for name in _PARENTS if (found := header(name))), "")
    if agent := header("x-claude-code-agent-id"):
        # Its agents are named within a session, whose main one has no name.
        first, parent = f"{first}/{agent}", f"{first}/{parent}" if parent else first
    helps = bool(agent or parent)
    return Client(_tenant(request), _named(request), first, parent, cache_key or "", helps)


def readable(field: str, name: str) -> str:
    """The same name of an agent, as a `field` has it, if its path leads to it. Raises Failure."""
    if name.endswith(READ):
        raise refused(field, f"no name ends with {' or '.join(READ)}: that is read of an agent")
    return name


# A client's own name for the conversation; the first that is there (Codex: never its session id).
_THREADS = ("thread-id", "x-claude-code-session-id", "x-session-id", "x-session-affinity")
_PARENTS = (
    "x-codex-parent-thread-id",
    "x-claude-code-parent-agent-id",
    "x-parent-session-id",
)


def reuse_headers(
    opened: Opened, fields: Sequence[str], manner: Mapping[str, str]
) -> dict[str, str]:
    """What an answer that was `opened` says of itself: who gives it, how many tokens of the
    conversation are known, and which `fields` are ignored, or that say its `manner`."""
    reuse = opened.reuse
    headers = {
        "X-Kvactors-Agent": opened.agent_id,
        "X-Kvactors-Reused": f"{opened.known} tokens, {reuse.how}",
        "X-Kvactors-Kept": ", ".join(reuse.kept),
        "X-Kvactors-Miss": reuse.miss,
    }
    shown = {name: _printable(value) for name, value in headers.items() if value}
    unread = [manner.get(name, f"chat_template_kwargs.{name}") for name in opened.unread]
    return shown | ignored_header([*fields, *dict.fromkeys(filter(None, unread))])


def ignored_header(fields: Sequence[str]) -> dict[str, str]:
    """The header that names `fields` that change nothing, if there are any."""
    return {"X-Kvactors-Ignored": _printable(", ".join(fields))} if fields else {}


def streamed(
    events: AsyncGenerator[ServerSentEvent, None],
    ping: Callable[[], ServerSentEvent],
    headers: Mapping[str, str],
    *,
    every: float = PING_SECONDS,
) -> EventSourceResponse:
    """A stream of `events`, whose data is JSON, under `headers`, with a `ping` every so many
    seconds from the first on."""
    return EventSourceResponse(
        _on_one_line(events),
        headers=dict(headers),
        ping=every,
        ping_message_factory=ping,
        send_timeout=SEND_SECONDS,
        sep="\n",
    )


class Download(StreamingResponse):
    """A file that is sent: one that nobody reads ends."""

    async def stream_response(self, send: Send) -> None:
        """As Starlette has it."""

        async def bounded(message: Message) -> None:
            async with asyncio.timeout(SEND_SECONDS):
                await send(message)

        await super().stream_response(bounded)


async def while_there(request: Request, work: Awaitable[_T]) -> _T:
    """What `work` returns, unless the client of the `request` goes away before."""
    task = asyncio.ensure_future(work)

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    watching = asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            raise Failure(499, "the client has gone away")
        return task.result()
    finally:
        watching.cancel()


async def _on_one_line(
    events: AsyncGenerator[ServerSentEvent, None],
) -> AsyncGenerator[ServerSentEvent, None]:
    """The same `events`. What some clients take for the end of a line stands in texts alone, and
    there its escape says the same."""
    async with aclosing(events):
        async for event in events:
            if event.data is not None:
                event.data = str(event.data).translate(_LINE_ENDS)
            yield event


def _printable(text: str) -> str:
    """What of a text may stand in a header: clients chose parts of it."""
    shown = "".join(c if " " <= c <= "~" else "?" for c in text[:MOST_SHOWN])
    return shown + ("..." if len(text) > MOST_SHOWN else "")


def _tenant(request: Request) -> str:
    return str(getattr(request.state, "tenant", ""))


def _named(request: Request) -> str:
    return readable("x-kvactors-agent", request.headers.get("x-kvactors-agent", ""))
