"""Door: a connection, before anybody is asked. The event loop's thread.

The headers of a request must come within some seconds, and its body at some speed, so that who
sends a byte now and then holds no connection for ever. Who cannot pass the gate is told so from the
first bytes of the connection, for half of what the application takes for it: a flood of such
requests leaves the processor to turns. What passes here is looked at again by the guard.

Who is told while still speaking is heard out for some seconds, and nothing is made of it: a
connection that is closed over unread bytes is reset, and what the client was told is lost.
"""

import asyncio
import http
from collections.abc import Callable
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvactors.actors.frontends.server.web.guard import Gate, length_of, shape_of
from kvactors.actors.frontends.server.wire.errors import Failure

__all__ = ["MOST_READ", "Door"]

# Bytes that come at once.
MOST_READ = 256 << 10
_END = b"\r\n\r\n"


class _Line:
    """A `transport`, as a protocol sees it, which closes it at once unless it `lingers`: then
    we say no more, and what still comes is read."""

    def __init__(self, transport: asyncio.Transport, lingers: Callable[[], bool]) -> None:
        self._transport, self._lingers = transport, lingers
        self.lingering = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self.lingering or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing() or not self._lingers():
            self._transport.close()
            return
        self.lingering = True
        self._transport.write_eof()
        self._transport.resume_reading()


class Door(H11Protocol):
    """One connection, as uvicorn makes it, in front of a `gate`."""

    def __init__(self, *args: Any, gate: Gate, **options: Any) -> None:
        super().__init__(*args, **options)
        self._gate = gate
        self._first = True
        self._came = 0
        self._speaking = False
        self._waits: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """It is open."""
        self._line = _Line(transport, self._linger)
        super().connection_made(cast(asyncio.Transport, self._line))
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed."""
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes came."""
        if self._line.lingering:
            return
        first, self._first = self._first, False
        if first and (failure := self._refused(data)):
            self._tell(*failure)
            return
        self._came += len(data)
        before = self.conn.their_state
        super().data_received(data)
        after = self.conn.their_state
        if after is h11.IDLE and self._came > 2 * self._gate.limits.headers:
            # Twice, for the gate does not count all of them: of whole ones it says it itself.
            self._speaking = True
            self._tell(self._gate.too_long(), "/")
        if after not in (h11.IDLE, h11.SEND_BODY):
            self._wait_no_more()
        elif self._waits is None or after is not before:
            self._wait()

    def _linger(self) -> bool:
        """Whether a client that is told to go may still speak; then for how long is bounded."""
        if speaks := self._speaking or self.conn.their_state in (h11.SEND_BODY, h11.ERROR):
            self._wait()
        return speaks

    def _wait(self) -> None:
        """Wait for the rest of the headers, or for more of the body."""
        self._wait_no_more()
        self._waits = self.loop.call_later(self._gate.limits.seconds, self._late)

    def _wait_no_more(self) -> None:
        self._came = 0
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def _late(self) -> None:
        """Time is up for what is waited for."""
        limits = self._gate.limits
        if self._line.lingering:
            self.transport.abort()
        elif self.conn.their_state is not h11.SEND_BODY:
            self._tell(Failure(408, f"no whole headers within {limits.seconds:g} seconds"), "/")
        elif self.flow.read_paused or self._came >= limits.slowest * limits.seconds:
            self._wait()
        else:
            # Who waits for the body is told that the client has gone.
            self.transport.abort()

    def _refused(self, data: bytes) -> tuple[Failure, str] | None:
        """What a connection that begins with `data` is refused with, and the path that it asks for,
        if that can be told at once. Where other sites may call, browsers are told what they may
        read of it, which is the application's."""
        head, ended, body = data.partition(_END)
        if not ended or self._gate.origins:
            return None
        request, *lines = head.split(b"\r\n")
        target = request.split(b" ")[1:2]
        path = target[0].partition(b"?")[0] if target else b""
        # Spelled in another way it may be one that everybody may ask for.
        if not path.startswith(b"/") or b"%" in path:
            return None
        parts = (line.partition(b":") for line in lines)
        fields = [(name.lower(), value.strip(b" \t")) for name, _, value in parts]
        names, said = [name for name, _ in fields], dict(fields)
        length = length_of(said.get(b"content-length", b"0").decode("latin-1"))
        if names.count(b"host") != 1 or length is None:
            return None
        asked = path.decode("latin-1")
        try:
            self._gate.admit(fields, asked)
        except Failure as failure:
            self._speaking = b"transfer-encoding" in said or length > len(body)
            return failure, asked
        return None

    def _tell(self, failure: Failure, path: str) -> None:
        """Say what is wrong, and close."""
        body = failure.json(shape_of(path)).encode()
        self.transport.write(
            f"HTTP/1.1 {failure.status} {http.HTTPStatus(failure.status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n".encode()
            + body
        )
        self.transport.close()
