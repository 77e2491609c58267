"""The application: its routes, and errors in the shape of the interface that was called."""

import logging
import sqlite3
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from kvactors.actors.frontends.server.agents.events import event_routes
from kvactors.actors.frontends.server.agents.routes import agent_routes
from kvactors.actors.frontends.server.answering.completions import Completions
from kvactors.actors.frontends.server.answering.home import of_nobody
from kvactors.actors.frontends.server.answering.service import Service
from kvactors.actors.frontends.server.page.routes import page_routes
from kvactors.actors.frontends.server.web.guard import Gate, Guard, shape_of
from kvactors.actors.frontends.server.wire.chat import chat_routes
from kvactors.actors.frontends.server.wire.completions import completion_routes
from kvactors.actors.frontends.server.wire.errors import Failure, failure_of, failure_response
from kvactors.actors.frontends.server.wire.messages import messages_routes
from kvactors.actors.frontends.server.wire.models import Named, model_routes
from kvactors.actors.frontends.server.wire.responses.routes import responses_routes
from kvactors.actors.frontends.server.wire.responses.store import ResponseStore
from kvactors.actors.system.system import AgentSystem
from kvactors.core.errors import KvactorsError

__all__ = ["make_app"]

logger = logging.getLogger(__name__)

OWN_HEADERS = tuple(f"X-Kvactors-{name}" for name in ("Agent", "Reused", "Kept", "Miss", "Ignored"))
# Those that are answered without a word in the log, but for what is our own fault.
_TOLD = (
    Exception,
    Failure,
    HTTPException,
    RequestValidationError,
    KvactorsError,
    sqlite3.DatabaseError,
    ClientDisconnect,
)


def make_app(
    service: Service,
    named: Named,
    gate: Gate,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
) -> FastAPI:
    """The ASGI application over a `service` of the models `named`, for whom the `gate` lets
    pass; `lifespan` is what it does by itself."""
    # FastAPI's own page of the interface takes its script from another host.
    app = FastAPIOffline(
        "/docs", None, title="kvactors", static_url="/docs-static", lifespan=lifespan
    )
    app.include_router(chat_routes(service, named))
    app.include_router(completion_routes(Completions(service), named))
    index = service.index
    store = ResponseStore(index.connection, service.claims.on_index, sealed=index.sealed)
    app.include_router(responses_routes(service, named, store))
    app.include_router(messages_routes(service, named))
    # The page shows what these say, and a cluster's front says none of it.
    if isinstance(system := service.system, AgentSystem):
        app.include_router(agent_routes(service))
        app.include_router(event_routes(service, system))
        app.include_router(page_routes())
    app.include_router(
        model_routes(named, lambda: _health(service, gate.keys), service.counts.registry)
    )

    async def failed(request: Request, error: Exception) -> Response:
        failure = failure_of(error)
        service.counts.failed(failure.status)
        if failure.status == 500:
            logger.error("%s failed", request.url.path, exc_info=error)
        return failure_response(failure, shape_of(request.url.path))

    for kind in _TOLD:
        app.add_exception_handler(kind, failed)
    app.add_middleware(Guard, gate=gate)
    if gate.origins:
        # In front of the guard: a browser asks without a key whether it may call at all.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(gate.origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=[*OWN_HEADERS, "Retry-After"],
        )
    return app


def _health(service: Service, keys: Callable[[], Collection[str]]) -> tuple[bool, dict[str, Any]]:
    health = service.system.health()
    well = health.state in ("ok", "stalled") and not service.claims.closing
    # Nobody needs a key to ask.
    return well, of_nobody(asdict(health)) if keys() else asdict(health)
