"""Guard: what is refused before anybody reads it. ASGI middleware.

Another host's name in Host is DNS rebinding, another site's in Origin a page that posts in its
reader's name; keys are compared in constant time; what is too large is refused by its length.
"""

import hmac
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

import xxhash
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvactors.actors.frontends.server.wire.errors import Failure, Shape

__all__ = ["Guard", "Limits", "shape_of"]


# What a browser, or a probe, asks for without a key: nothing there is anybody's.
_OPEN = ("/", "/page/style.css", "/page/page.js", "/health")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may have at most: bytes of its body, and of its headers."""

    body: int = 64 << 20
    headers: int = 64 << 10


class Guard:
    """In front of an `app`. `hosts` are the names that it answers to (all, if empty), `origins`
    other sites that may call it, `keys` gives the API keys that count now, none if nobody needs
    one, `limits` bound a request. Sets `request.state.tenant`."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str],
        origins: Collection[str] = (),
        keys: Callable[[], Collection[str]] = tuple,
        limits: Limits = Limits(),
    ) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._origins = frozenset(origins)
        self._keys = keys
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may pass."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            scope.setdefault("state", {})["tenant"] = self._admit(request)
        except Failure as failure:
            await _answer(failure, request)(scope, receive, send)
            return
        taken = 0

        async def bounded() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._limits.body:
                raise self._too_large()
            return message

        await self._app(scope, bounded, send)

    def _admit(self, request: Request) -> str:
        """The tenant of a request. Raises Failure."""
        if sum(len(k) + len(v) for k, v in request.headers.raw) > self._limits.headers:
            raise Failure(431, f"headers of more than {self._limits.headers} bytes")
        host = request.headers.get("host", "")
        if self._hosts and _name(host) not in self._hosts:
            raise Failure(403, f"this server is not {_name(host)!r}: it answers to its own names")
        origin = request.headers.get("origin")
        if origin and _netloc(origin) != host and origin not in self._origins:
            raise Failure(403, f"pages of {origin!r} may not call this server: see --cors")
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._limits.body:
            raise self._too_large()
        return self._tenant(request)

    def _tenant(self, request: Request) -> str:
        keys = self._keys()
        if not keys or request.url.path in _OPEN:
            return ""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else ""
        given = given or request.headers.get("x-api-key", "")
        # All are compared, so that no timing tells which one was near.
        same = [hmac.compare_digest(key.encode(), given.encode()) for key in keys]
        if not any(same):
            raise Failure(401, "an API key is needed: Authorization: Bearer KEY, or x-api-key")
        return xxhash.xxh3_128_hexdigest(given.encode())

    def _too_large(self) -> Failure:
        return Failure(413, f"the body has more than {self._limits.body} bytes")


def shape_of(path: str) -> Shape:
    """In which shape errors of a path are told."""
    if path.startswith("/v1/messages"):
        return "anthropic"
    return "openai"


def _answer(failure: Failure, request: Request) -> Response:
    body = json.dumps(failure.body(shape_of(request.url.path)))
    headers = {**failure.headers, "connection": "close"}
    return Response(body, failure.status, headers, media_type="application/json")


def _name(host: str) -> str:
    """A host without its port; "" for what is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""
