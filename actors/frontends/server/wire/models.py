"""`/v1/models`, `/health`, `/metrics`: what there is, how it is, and how much of it there was."""

import time
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from kvactors.actors.frontends.server.wire.errors import Failure

__all__ = ["OURS", "Named", "model_routes"]


OURS = "kvactors"
"""The loaded model, whatever its name is: in some clients "default" means another one."""


class Named:
    """The models that requests may name: the loaded one by its `name` or as `OURS`, by `aliases` of
    it, or `any_` name at all."""

    def __init__(self, name: str, aliases: tuple[str, ...] = (), *, any_: bool = False) -> None:
        self.name = name
        self.aliases = aliases
        self._any = any_
        self._since = int(time.time())

    def check(self, asked: str) -> str:
        """The name that an answer gives back. Raises Failure 404."""
        if not asked or asked in (self.name, OURS, *self.aliases) or self._any:
            return asked or self.name
        raise Failure(
            404,
            f"model: {asked!r} is not served here, {self.name!r} is; --alias {asked}={self.name} "
            "or --any-model makes it answer to other names",
            "model",
            "model_not_found",
        )

    def entries(self) -> list[dict[str, Any]]:
        """In the shapes of both packages."""
        made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._since))
        return [
            {
                "id": name,
                "object": "model",
                "created": self._since,
                "owned_by": "kvactors",
                "type": "model",
                "display_name": name,
                "created_at": made,
            }
            for name in (self.name, *self.aliases)
        ]


def model_routes(
    named: Named, health: Callable[[], tuple[bool, dict[str, Any]]], registry: CollectorRegistry
) -> APIRouter:
    """The routes over the models `named`; `health` gives whether turns are taken, and how it is;
    `registry` has what is counted."""
    router = APIRouter(tags=["Server"])

    @router.head("/v1/models", include_in_schema=False)
    @router.get("/v1/models")
    def models() -> dict[str, Any]:
        entries = named.entries()
        ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]}
        return {"object": "list", "data": entries, "has_more": False, **ends}

    @router.head("/v1/models/{model:path}", include_in_schema=False)
    @router.get("/v1/models/{model:path}")
    def model(model: str) -> dict[str, Any]:
        named.check(model)
        return {**named.entries()[0], "id": model}

    @router.head("/health", include_in_schema=False)
    @router.get("/health")
    def how_it_is(response: Response) -> dict[str, Any]:
        well, said = health()
        response.status_code = 200 if well else 503
        if not well:
            response.headers["Retry-After"] = "5"
        return said

    @router.head("/metrics", include_in_schema=False)
    @router.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router
