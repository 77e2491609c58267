"""Guard: what is refused before anybody reads it. ASGI middleware.

Another host's name in Host is DNS rebinding, another site's in Origin a page that posts in its
reader's name; keys are compared in constant time; what is too large is refused by its length.
"""

import hmac
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import xxhash
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvactors.actors.frontends.server.wire.errors import Failure, Shape

__all__ = ["Gate", "Guard", "Limits", "length_of", "shape_of"]


# What a browser, or a probe, asks for without a key: nothing there is anybody's.
_OPEN = ("/", "/page/style.css", "/page/page.js", "/health")


# Of a length, which h11 lets pass.
MOST_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may have at most: bytes of its body, or of the agent that is `imported`, and
    of its headers. Its headers must have come after so many `seconds`, and its body at `slowest`
    bytes a second."""

    body: int = 64 << 20
    imported: int = 64 << 30
    headers: int = 64 << 10
    seconds: float = 20.0
    slowest: int = 1 << 10


@dataclass(frozen=True, slots=True)
class Gate:
    """Who may pass. `hosts` are the names that are answered to (all, if empty), `origins` other
    sites that may call, `keys` gives the API keys that count now, none if nobody needs one,
    `limits` bound a request."""

    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    keys: Callable[[], Collection[str]] = tuple
    limits: Limits = Limits()

    def admit(self, fields: Sequence[tuple[bytes, bytes]], path: str) -> str:
        """The tenant of a request for a `path` with these header `fields`, their names in lower
        case. Raises Failure."""
        # A line has a colon, a blank and an end beside its name and value.
        if sum(len(k) + len(v) + 4 for k, v in fields) > self.limits.headers:
            raise self.too_long()
        first = {name: value.decode("latin-1") for name, value in reversed(fields)}
        host = first.get(b"host", "")
        if self.hosts and _name(host) not in self.hosts:
            raise Failure(403, f"this server is not {_name(host)!r}: it answers to its own names")
        origin = first.get(b"origin")
        if origin and _netloc(origin) != host and origin not in self.origins:
            raise Failure(403, f"pages of {origin!r} may not call this server: see --cors")
        if origin not in self.origins and path not in _OPEN:
            # Pages of others fetch pictures and scripts without an origin. What they link to they
            # cannot read.
            site, goes = first.get(b"sec-fetch-site", ""), first.get(b"sec-fetch-dest", "")
            if site in ("cross-site", "same-site") and goes != "document":
                raise Failure(403, f"pages of another site ({site}) may not call this server")
        if (length_of(first.get(b"content-length", "0")) or 0) > self.most(path):
            raise self.too_large(path)
        return self._tenant(first, path)

    def most(self, path: str) -> int:
        """Bytes that a body to this `path` may have. An imported agent goes to a file."""
        imports = path.startswith("/agents/") and path.endswith("/import")
        return self.limits.imported if imports else self.limits.body

    def too_large(self, path: str) -> Failure:
        """What a body to this `path` is refused with that is longer than it may be."""
        said = f"the body has more than {self.most(path)} bytes"
        # The rest of it would be read for the next request.
        return Failure(413, said, headers={"connection": "close"})

    def too_long(self) -> Failure:
        """What headers are refused with that are longer than they may be."""
        return Failure(431, f"the headers have more than {self.limits.headers} bytes")

    def _tenant(self, first: Mapping[bytes, str], path: str) -> str:
        keys = self.keys()
        if not keys or path in _OPEN:
            return ""
        scheme, _, given = first.get(b"authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else ""
        given = given or first.get(b"x-api-key", "")
        # All are compared, so that no timing tells which one was near.
        same = [hmac.compare_digest(key.encode(), given.encode("latin-1")) for key in keys]
        if not any(same):
            raise Failure(401, "an API key is needed: Authorization: Bearer KEY, or x-api-key")
        return xxhash.xxh3_128_hexdigest(given.encode())


class Guard:
    """In front of an `app`: who passes the `gate`. Sets `request.state.tenant`."""

    def __init__(self, app: ASGIApp, *, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may pass."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            tenant = self._gate.admit(scope["headers"], scope["path"])
            scope.setdefault("state", {})["tenant"] = tenant
        except Failure as failure:
            await _answer(failure, scope["path"])(scope, receive, send)
            return
        path, taken = scope["path"], 0

        async def bounded() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._gate.most(path):
                raise self._gate.too_large(path)
            return message

        await self._app(scope, bounded, send)


def length_of(said: str) -> int | None:
    """Bytes that a Content-Length says; None for what is no length, which h11 refuses."""
    digits = said.isascii() and said.isdigit() and len(said) <= MOST_DIGITS
    return int(said) if digits else None


def shape_of(path: str) -> Shape:
    """In which shape errors of a path are told."""
    if path.startswith("/v1/messages"):
        return "anthropic"
    return "openai"


def _answer(failure: Failure, path: str) -> Response:
    headers = {**failure.headers, "connection": "close"}
    return Response(
        failure.json(shape_of(path)), failure.status, headers, media_type="application/json"
    )


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
