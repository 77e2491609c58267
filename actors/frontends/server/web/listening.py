"""Listening: a port is taken before its model is loaded, and whoever calls meanwhile is told to
come back. Any thread.
"""

import errno
import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from kvactors.actors.frontends.server.web.door import MOST_READ, Door
from kvactors.actors.frontends.server.web.guard import Gate, shape_of
from kvactors.actors.frontends.server.web.settings import Settings
from kvactors.actors.frontends.server.wire.errors import RETRY_SECONDS, Failure, failure_response

__all__ = ["connections", "listen", "loading", "more_connections"]

FILES = 10_240

_HEADERS = {"Retry-After": str(RETRY_SECONDS), "Connection": "close"}
_LOADING = Failure(503, "the model is being loaded", None, "unavailable", _HEADERS)


def listen(settings: Settings) -> socket.socket:
    """The port of these `settings`. Raises OSError if it is taken."""
    host, port = settings.host, settings.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        if port and _answers(family, host, port):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listening = socket.create_server((host, port), family=family, backlog=2048)
        # Connections have it from here: asyncio sets it where a socket says that it is TCP's, and
        # this one does not. Without it each piece of an answer waits 40 ms for the one before.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        said = f"cannot listen on {host} port {port}: {error.strerror}; choose another --port"
        raise OSError(error.errno, said) from error


def more_connections() -> None:
    """Let this process have as many files and connections as it may: macOS begins with 256."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS says that there is no limit, and takes no more than these.
    wanted = FILES if most == resource.RLIM_INFINITY else min(FILES, most)
    if now != resource.RLIM_INFINITY and now < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def connections(app: ASGIApp, gate: Gate, grace: float) -> uvicorn.Config:
    """How connections to an `app` are kept, behind a `gate`; `grace` seconds are left to them in
    the end."""
    return uvicorn.Config(
        app,
        # uvicorn calls it like the class that it asks for.
        http=partial(Door, gate=gate),  # type: ignore[arg-type]
        log_level="warning",
        server_header=False,
        # Beyond the bound of the door, which says what is too long.
        h11_max_incomplete_event_size=2 * (gate.limits.headers + MOST_READ),
        timeout_graceful_shutdown=int(grace) + 1,
    )


@contextmanager
def loading(listening: socket.socket, gate: Gate) -> Iterator[None]:
    """Answer 503 to everybody who comes to a port, on which nobody else is `listening` yet, behind
    a `gate`. Who comes after that waits for whoever takes it next."""
    server = uvicorn.Server(connections(_wait, gate, grace=0))
    thread = threading.Thread(
        target=server.run, args=([listening.dup()],), name="kvactors-loading", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def _answers(family: int, host: str, port: int) -> bool:
    """Whether somebody has a port: macOS gives that of all addresses again, for one of them. Raises
    OSError where the host has no address of the `family`."""
    with socket.socket(family) as asking:
        asking.settimeout(1)
        return asking.connect_ex((host, port)) == 0


async def _wait(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await failure_response(_LOADING, shape_of(scope["path"]))(scope, receive, send)
