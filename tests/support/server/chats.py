"""Chat completions as tests send them."""

import asyncio
from typing import Any

import httpx

from kvactors.actors.frontends.server.web.serve import Server

__all__ = ["WAIT", "asked", "post", "until", "url"]

WAIT = 60


def asked(text: str, **options: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": text}]
    return {"messages": said, "max_tokens": 20, "temperature": 0} | options


def url(server: Server) -> str:
    return f"{server.url}/v1/chat/completions"


def post(server: Server, body: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(url(server), json=body, headers=headers, timeout=WAIT)


async def until(server: Server, open_turns: int) -> None:
    """Return when so many turns are open."""
    while True:
        text = (await asyncio.to_thread(httpx.get, f"{server.url}/metrics")).text
        if f"kvactors_open_turns {open_turns}.0" in text:
            return
        await asyncio.sleep(0.01)
