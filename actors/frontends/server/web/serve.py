"""`serve`: a server on a thread of its own, for a program or the command line."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvicorn
from fastapi import FastAPI

from kvactors.actors.frontends.server.answering.expiry import keep_expiring
from kvactors.actors.frontends.server.answering.home import Home
from kvactors.actors.frontends.server.answering.service import Service
from kvactors.actors.frontends.server.identity.index import Index
from kvactors.actors.frontends.server.identity.sealed import Sealed
from kvactors.actors.frontends.server.identity.tables import INDEX
from kvactors.actors.frontends.server.web.app import make_app
from kvactors.actors.frontends.server.web.command import PORT
from kvactors.actors.frontends.server.web.listening import connections, listen
from kvactors.actors.frontends.server.web.settings import Settings
from kvactors.actors.frontends.server.wire.models import Named
from kvactors.actors.system.system import AgentSystem

__all__ = ["PORT", "Server", "serve"]


class Server:
    """A server of one running `system`, or of a cluster's front, as `settings` say, its index in
    the file `index`; `listening` is the port, where that is taken already. Any thread.

    `app` is the ASGI application, to run it or mount it elsewhere: then its lifespan must run.
    """

    def __init__(
        self,
        system: Home,
        index: Path | None,
        settings: Settings,
        listening: socket.socket | None = None,
    ) -> None:
        self.settings = settings
        self._root = index.parent if index else None
        # Raises for a system that does not run, before there is a file.
        named = Named(system.info.name, settings.aliases, any_=settings.any_model)
        self._listening = listening
        kept = Index(index, sealed=Sealed(settings.encryption_key))
        try:
            self.service = Service(system, kept, settings.rules, most=settings.most)
            gate = settings.gate()
            self.app = make_app(self.service, named, gate, self._alive)
            self._server = uvicorn.Server(connections(self.app, gate, settings.grace))
        except BaseException:
            # The traceback would hold it, and its lock with it.
            kept.close()
            raise
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._alive_began = False
        self._until: float | None = None
        self._thread = threading.Thread(target=self._run, name="kvactors-server")

    @property
    def model(self) -> str:
        """What it serves."""
        return self.service.system.info.name

    @property
    def context(self) -> int:
        """How many tokens a conversation may have."""
        return self.service.system.info.spec.context

    @property
    def has_page(self) -> bool:
        """Whether it shows its agents: those of a cluster it does not."""
        return isinstance(self.service.system, AgentSystem)

    @property
    def url(self) -> str:
        """Where it listens."""
        port = self._server.servers[0].sockets[0].getsockname()[1]
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"http://{host}:{port}"

    def start(self) -> Self:
        """Listen. Raises OSError if the port is taken."""
        try:
            self._thread.start()
            self._ready.wait()
            if self._failed is not None:
                raise self._failed
        except BaseException:
            # Of Ctrl-C, too: the process would wait for it for ever.
            self.stop()
            self.service.claims.close()
            raise
        return self

    def stop(self) -> None:
        """Take no more turns, let the running ones finish, and end; twice is as good as once."""
        # At once: streams that have no end of their own would hold it up.
        self.service.claims.closing = True
        if self._until is None:
            self._until = time.monotonic() + self.settings.grace
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        elif not self._alive_began:
            # Mounted elsewhere it is closed by its lifespan, once running turns are over.
            self.service.claims.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failed = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        running = asyncio.create_task(
            self._server.serve(sockets=[self._listening or listen(self.settings)])
        )
        while not (self._server.started or running.done()):
            await asyncio.sleep(0.005)
        self._ready.set()
        await running

    @asynccontextmanager
    async def _alive(self, _: FastAPI) -> AsyncIterator[None]:
        """What the application does by itself, and its end."""
        self._alive_began = True
        settings, home = self.settings, self.service.system
        # Nodes of a cluster see to their own memory.
        leave = partial(home.deactivate, timeout=1.0) if isinstance(home, AgentSystem) else None
        expiring = asyncio.create_task(
            keep_expiring(
                self.service, self._root, settings.keep_seconds, settings.keep_bytes, leave
            )
        )
        try:
            yield
        finally:
            expiring.cancel()
            # Connections were waited for, and have had their part of it.
            left = settings.grace if self._until is None else self._until - time.monotonic()
            await self.service.close(max(0.0, left))


def serve(system: Home, *, index: Path | None = None, **settings: Any) -> Server:
    """A server for a running `system`: `with serve(system, port=0) as server: print(server.url)`;
    that of a cluster is `cluster.front()`.
    `settings` are those of `Settings`; `index` is the file that says who knows what, by default in
    the store and sealed as that is, in memory where there is none. Raises InvalidConfig."""
    if index is None and isinstance(system, AgentSystem) and system.parts.store is not None:
        index = system.parts.store / INDEX
        settings = {"encryption_key": system.parts.encryption_key} | settings
    return Server(system, index, Settings(**settings))
