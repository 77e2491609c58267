"""What a client does with a request: send it, and read the stream that answers it.

No more than sockets and JSON, so that what is measured is the server. Under asyncio, in a process
of its own (`in_another_process`): clients do not share an interpreter with the server.
"""

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from kvactors.bench.serve.clients import Client, Request

__all__ = ["Answer", "ask", "encoded", "fan_out", "leaver", "play", "player", "together"]

# A line of a stream may repeat the whole request.
LINE_BYTES = 1 << 26


@dataclass(slots=True)
class Answer:
    """What came: seconds to the first text and to the end, the text, and tokens of the prompt, and
    of these the ones that had KV."""

    first: float = 0.0
    seconds: float = 0.0
    text: str = ""
    prompt: int = 0
    cached: int = 0


async def ask(url: str, request: Request) -> Answer:
    """The whole answer of the server at `url`. Raises RuntimeError for a status that is no
    success, and for a stream that tells of an error."""
    place = urlsplit(url)
    content = encoded(request, place.netloc)
    begin = perf_counter()
    reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=LINE_BYTES)
    try:
        writer.write(content)
        status = (await reader.readline()).split()[1]
        if not status.startswith(b"2"):
            raise RuntimeError(f"{status.decode()}: {(await reader.read()).decode()}")
        answer = Answer()
        async for line in reader:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            _take(answer, json.loads(line[6:]), perf_counter() - begin)
        answer.seconds = perf_counter() - begin
        answer.first = answer.first or answer.seconds
        return answer
    finally:
        writer.close()


def encoded(request: Request, host: str) -> bytes:
    """What goes over the wire to a `host`."""
    content = json.dumps(request.body).encode()
    headers = {
        "Host": host,
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
        "Connection": "close",
        **request.headers,
    }
    lines = [f"POST {request.path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + content


def _take(answer: Answer, event: Mapping[str, Any], now: float) -> None:
    """Add what an event of one of the three interfaces says."""
    if event.get("type") in ("error", "response.failed") or event.keys() <= {"error"}:
        raise RuntimeError(json.dumps(event))
    if text := _text(event):
        answer.first = answer.first or now
        answer.text += text
    usage = (event.get("response") or event.get("message") or event).get("usage") or {}
    if "prompt_tokens" in usage:
        details = usage.get("prompt_tokens_details") or {}
        answer.prompt, answer.cached = usage["prompt_tokens"], details.get("cached_tokens", 0)
    elif "input_tokens_details" in usage:
        answer.prompt = usage["input_tokens"]
        answer.cached = usage["input_tokens_details"]["cached_tokens"]
    elif "cache_read_input_tokens" in usage:
        answer.cached = usage["cache_read_input_tokens"]
        new = usage["input_tokens"] + (usage.get("cache_creation_input_tokens") or 0)
        answer.prompt = answer.cached + new


def _text(event: Mapping[str, Any]) -> str:
    if event.get("type") == "response.output_text.delta":
        return str(event["delta"])
    if event.get("type") == "content_block_delta":
        return str(event["delta"].get("text", ""))
    choices = event.get("choices") or [{}]
    return str((choices[0].get("delta") or {}).get("content") or "")


# -- what is asked of a process of clients ---------------------------------------------


def player() -> Callable[..., Any]:
    """Runs coroutines of this module, given to it with their arguments."""

    def act(work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
        return asyncio.run(work(*arguments))

    return act


def leaver() -> Callable[..., None]:
    """What is returned sends a request to a URL, and returns; given nothing, it goes away without
    the answer."""
    open_: list[socket.socket] = []

    def act(url: str = "", request: Request | None = None) -> None:
        if request is None:
            open_.pop().close()
            return
        place = urlsplit(url)
        open_.append(socket.create_connection((place.hostname, place.port)))
        open_[-1].sendall(encoded(request, place.netloc))

    return act


async def together(url: str, requests: Sequence[Request]) -> tuple[float, list[Answer]]:
    """Seconds from the first of these requests, sent at once, to the end of the last answer; and
    the answers."""
    begin = perf_counter()
    answers = await asyncio.gather(*(ask(url, request) for request in requests))
    return perf_counter() - begin, answers


async def play(
    url: str, clients: Sequence[Client], asked: Sequence[Sequence[str]], decoded: int
) -> tuple[float, list[list[Answer]]]:
    """Seconds that all `clients` take, at once, for their turns at `url`, each `asked` its own and
    answered with `decoded` tokens; and the answers of each."""
    begin = perf_counter()
    found = await asyncio.gather(
        *(
            _turns(url, client, says, decoded, into=[])
            for client, says in zip(clients, asked, strict=True)
        )
    )
    return perf_counter() - begin, found


async def fan_out(
    url: str, clients: Sequence[Client], asked: Sequence[Sequence[str]], decoded: int
) -> list[list[Answer]]:
    """The answers of each when the first of `clients` takes its turns, one after the other, and all
    the others theirs from its first answer to its last; `url`, `asked` and `decoded` are those of
    `play`."""
    found = [list[Answer]() for _ in clients]
    await _turns(url, clients[0], asked[0][:1], decoded, into=found[0])
    main, *others = (
        asyncio.create_task(_turns(url, client, says, decoded, into=answers))
        for client, says, answers in zip(clients, asked, found, strict=True)
    )
    await main
    for task in others:
        task.cancel()
    for error in await asyncio.gather(*others, return_exceptions=True):
        if isinstance(error, Exception):
            raise error
    return found


async def _turns(
    url: str, client: Client, says: Sequence[str], decoded: int, *, into: list[Answer]
) -> list[Answer]:
    """The answers to all that it `says`, behind those that are there; `into` that list."""
    said = [part for text, answer in zip(says, into, strict=False) for part in (text, answer.text)]
    for text in says[len(into) :]:
        said.append(text)
        into.append(await ask(url, client.request(said, decoded)))
        said.append(into[-1].text)
    return into
