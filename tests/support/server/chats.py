"""Chat completions as tests send them."""

from typing import Any

import httpx

from kvactors.actors.frontends.server.web.serve import Server

__all__ = ["WAIT", "asked", "post", "url"]

WAIT = 60


def asked(text: str, **options: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": text}]
    return {"messages": said, "max_tokens": 20, "temperature": 0} | options


def url(server: Server) -> str:
    return f"{server.url}/v1/chat/completions"


def post(server: Server, body: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(url(server), json=body, headers=headers, timeout=WAIT)
