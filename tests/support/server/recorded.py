"""What clients sent once, sent again, and what comes of it."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from puppets import puppet_server

from kvactors.actors.testing import PuppetModel

__all__ = ["RECORDED", "Heard", "calls_of", "read", "send_again"]

CLAUDE, CLAUDE_HELPER = "x-claude-code-session-id", "x-claude-code-agent-id"
RECORDED = Path(__file__).parents[2] / "golden" / "clients"


@dataclass(frozen=True)
class Heard:
    """A recorded `exchange`, and what came of it: the agent, how it was found, usage, and the
    events of the stream."""

    exchange: dict[str, Any]
    agent: str
    how: str
    prompt: int
    cached: int
    events: list[dict[str, Any]]

    @property
    def conversation(self) -> tuple[str, bool]:
        """What the client itself holds to be one: of a session without tools it makes titles."""
        headers, names = (
            self.exchange["headers"],
            (CLAUDE_HELPER, CLAUDE, "thread-id", "x-session-id"),
        )
        name = next((headers[name] for name in names if name in headers), "")
        return name, bool(self.exchange["body"].get("tools"))

    @property
    def parent(self) -> str:
        """The conversation that this one says it comes from."""
        headers = self.exchange["headers"]
        if CLAUDE_HELPER in headers:
            return str(headers[CLAUDE])
        return str(
            headers.get("x-codex-parent-thread-id") or headers.get("x-parent-session-id") or ""
        )


def read(client: str) -> list[dict[str, Any]]:
    """The exchanges of a client. What is sent more than once stands in its file once."""
    recorded = json.loads((RECORDED / f"{client}.json").read_text(encoding="utf-8"))
    for exchange in recorded["exchanges"]:
        body = exchange["body"]
        for field in ("system", "messages", "input", "tools"):
            if field in body:
                things = recorded["tools" if field == "tools" else "items"]
                body[field] = [things[place] for place in body[field]]
    exchanges: list[dict[str, Any]] = recorded["exchanges"]
    return exchanges


def send_again(exchanges: list[dict[str, Any]], store: Path) -> Iterator[Heard]:
    """The exchanges with a server that is started anew where it was."""
    says, given = list[str](), dict[str, str]()
    with ExitStack() as running:
        server = None
        for exchange in exchanges:
            if server is None or exchange["restarted"]:
                running.close()
                puppet = PuppetModel(lambda _said: says.pop(0))
                server = running.enter_context(puppet_server(puppet, store))
            says.append(exchange["says"])
            body = json.dumps(exchange["body"])
            for then, now in given.items():
                body = body.replace(then, now)
            answer = httpx.post(
                f"{server.url}{exchange['path']}",
                content=body,
                headers={"content-type": "application/json", **exchange["headers"]},
                timeout=60,
            )
            assert answer.status_code == 200, answer.text
            heard = heard_of(exchange, answer)
            given |= zip(exchange["calls"], calls_of(heard), strict=True)
            yield heard


def heard_of(exchange: dict[str, Any], answer: httpx.Response) -> Heard:
    """What an answer says, streamed or not."""
    lines = answer.text.splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    whole = [] if data else [answer.json()]
    events = [json.loads(one) for one in data if one != "[DONE]"] or whole
    agent, how = (answer.headers[f"x-kvactors-{name}"] for name in ("agent", "reused"))
    return Heard(exchange, agent, how, *_tokens(events), events)


def _tokens(events: list[dict[str, Any]]) -> tuple[int, int]:
    """Those of the prompt, and of these the cached ones."""
    first, last = events[0], events[-1]
    if "message" in first:
        used, cached = (
            first["message"]["usage"],
            first["message"]["usage"]["cache_read_input_tokens"],
        )
        return used["input_tokens"] + cached, cached
    usage = last["response"]["usage"] if "response" in last else last.get("usage") or {}
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return usage.get("prompt_tokens", usage.get("input_tokens", 0)), details.get("cached_tokens", 0)


def calls_of(heard: Heard) -> list[str]:
    """The ids of the calls that were made, each once."""
    return list(dict.fromkeys(re.findall(r"call_kv[0-9a-f]{24}", json.dumps(heard.events))))
