"""`serve`: a server on a thread of its own, for a program or the command line."""

import asyncio
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvicorn

from kvactors.actors.frontends.server.answering.expiry import keep_expiring
from kvactors.actors.frontends.server.answering.home import Home
from kvactors.actors.frontends.server.answering.service import Service
from kvactors.actors.frontends.server.identity.index import Index
from kvactors.actors.frontends.server.identity.rules import Rule, shipped_rules
from kvactors.actors.frontends.server.identity.sealed import Sealed
from kvactors.actors.frontends.server.web.app import LOOPBACK, make_app
from kvactors.actors.frontends.server.web.command import PORT
from kvactors.actors.frontends.server.web.door import MOST_READ, Door
from kvactors.actors.frontends.server.web.guard import Gate, Limits
from kvactors.actors.frontends.server.wire.models import Named
from kvactors.actors.system.system import AgentSystem
from kvactors.core.errors import InvalidConfig
from kvactors.persistence.files.encryption import EncryptionKey

__all__ = ["PORT", "Server", "Settings", "serve"]

# Seconds for running turns to finish, once it is told to stop.
GRACE = 30.0


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server listens, and to whom.

    `host` and `port` (0: a free one); any host but a loopback one needs `keys`, which gives the API
    keys that count now. `names` are further names in Host that it answers to, `origins` other sites
    whose pages may call it. Requests may name the model by `aliases` too, or anyhow with
    `any_model`. `rules` say what in a system prompt is no difference. `most` turns may
    be open at once; `grace` seconds are left to them when it stops; `limits` bound a request.
    Agents without a name leave
    after `keep_seconds` without a turn, and while they take more than `keep_bytes` on disk.
    `encryption_key` is that of the system's store: what was said is sealed with it in the index.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    keys: Callable[[], Collection[str]] = tuple
    names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    any_model: bool = False
    rules: Sequence[Rule] = field(default_factory=shipped_rules)
    most: int = 1000
    grace: float = GRACE
    limits: Limits = field(default_factory=Limits)
    keep_seconds: float | None = None
    keep_bytes: int | None = None
    encryption_key: EncryptionKey | None = field(default=None, repr=False)


class Server:
    """A server of one running `system`, or of a cluster's front, as `settings` say, its index in
    the file `index`. Any thread.

    `app` is the ASGI application, to mount it elsewhere: its lifespan must run then.
    """

    def __init__(self, system: Home, index: Path | None, settings: Settings) -> None:
        if settings.host not in LOOPBACK and not settings.keys():
            raise InvalidConfig(
                f"{settings.host} can be reached by others: give --api-key-file, or listen on "
                "127.0.0.1"
            )
        self.settings = settings
        self._root = index.parent if index else None
        kept = Index(index, sealed=Sealed(settings.encryption_key))
        self.service = Service(system, kept, settings.rules, most=settings.most)
        hosts = {*LOOPBACK, settings.host, *settings.names}
        everywhere = settings.host in ("0.0.0.0", "::")
        gate = Gate(
            frozenset() if everywhere else frozenset(hosts),
            frozenset(settings.origins),
            settings.keys,
            settings.limits,
        )
        named = Named(system.info.name, settings.aliases, any_=settings.any_model)
        self.app = make_app(self.service, named, gate)
        self._server = uvicorn.Server(
            uvicorn.Config(
                self.app,
                settings.host,
                settings.port,
                # uvicorn calls it like the class that it asks for.
                http=partial(Door, gate=gate),  # type: ignore[arg-type]
                log_level="warning",
                server_header=False,
                # Beyond the bound of the door, which says what is too long.
                h11_max_incomplete_event_size=2 * (settings.limits.headers + MOST_READ),
                timeout_graceful_shutdown=int(settings.grace) + 1,
            )
        )
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kvactors-server")

    @property
    def model(self) -> str:
        """What it serves."""
        return self.service.system.info.name

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
        self._thread.start()
        self._ready.wait()
        if self._failed is not None:
            raise self._failed
        return self

    def stop(self) -> None:
        """Take no more turns, let the running ones finish, and end; twice is as good as once."""
        # At once: streams that have no end of their own would hold it up.
        self.service.claims.closing = True
        self._server.should_exit = True
        self._thread.join()

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

    def _listening(self) -> socket.socket:
        host, port = self.settings.host, self.settings.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return socket.create_server((host, port), family=family, backlog=2048)
        except OSError as error:
            said = f"cannot listen on {host} port {port}: {error.strerror}; choose another --port"
            raise OSError(error.errno, said) from error

    async def _serve(self) -> None:
        running = asyncio.create_task(self._server.serve(sockets=[self._listening()]))
        while not (self._server.started or running.done()):
            await asyncio.sleep(0.005)
        self._ready.set()
        settings, home = self.settings, self.service.system
        # Nodes of a cluster see to their own memory.
        leave = partial(home.deactivate, timeout=1.0) if isinstance(home, AgentSystem) else None
        expiring = asyncio.create_task(
            keep_expiring(
                self.service, self._root, settings.keep_seconds, settings.keep_bytes, leave
            )
        )
        await running
        expiring.cancel()
        await self.service.close(self.settings.grace)


def serve(system: Home, *, index: Path | None = None, **settings: Any) -> Server:
    """A server for a running `system`: `with serve(system, port=0) as server: print(server.url)`;
    that of a cluster is `cluster.front()`.
    `settings` are those of `Settings`; `index` is the file that says who knows what, in memory if
    it is None. Raises InvalidConfig."""
    return Server(system, index, Settings(**settings))
