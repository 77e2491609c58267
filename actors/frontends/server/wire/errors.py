"""Errors in the shape of the interface that was called."""

import json
import logging
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from kvactors.actors.cluster.protocol.errors import ClusterError, UnknownAgent
from kvactors.actors.errors import (
    AgentExists,
    AgentNotStored,
    ExportRejected,
    ImportRejected,
    SaveQueueFull,
    StorageError,
)
from kvactors.actors.frontends.server.exchange.answers import AgentBusy
from kvactors.actors.frontends.server.exchange.completion import Completed
from kvactors.actors.frontends.server.exchange.events import Ended
from kvactors.core.errors import (
    AdmissionFull,
    ContextExceeded,
    EngineDied,
    InvalidInput,
    KvactorsError,
    MailboxFull,
    MemoryExceeded,
    SystemStopped,
    TemplateError,
    TurnTimeout,
)

__all__ = [
    "CANCELLED",
    "Failure",
    "Shape",
    "failed_late",
    "failure_of",
    "failure_response",
    "refused",
    "whole",
]

logger = logging.getLogger(__name__)

Shape = Literal["openai", "anthropic", "plain"]
_Ended = TypeVar("_Ended", Ended, Completed)
RETRY_SECONDS = 5
CANCELLED = "the turn was cancelled"


@dataclass(eq=False)
class Failure(Exception):
    """A request that fails with a `status`: `param` is the field that is wrong, `code` what
    programs look at, `full` the tokens of a prompt that a context has no room for, and of those it
    has room for, `reason` why Anthropic's threads are not gone on with."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    full: tuple[int, int] | None = None
    reason: str = ""

    def body(self, shape: Shape) -> dict[str, Any]:
        """What is answered, in the `shape` of the interface."""
        ours = self.status >= 500
        if shape == "anthropic":
            kind = _ANTHROPIC.get(self.status, "api_error" if ours else "invalid_request_error")
            more = {"details": {"error_code": self.reason}} if self.reason else {}
            error = {"type": kind, "message": self._words(shape), **more}
            return {"type": "error", "error": error}
        kind = _OPENAI.get(self.status, "server_error" if ours else "invalid_request_error")
        told = {"message": self._words(shape), "type": kind, "param": self.param}
        return {"error": told | {"code": self.code}}

    def _words(self, shape: Shape) -> str:
        """The message. By how it begins, and by no code, clients know that they must compact."""
        if self.code != "context_length_exceeded" or shape == "plain":
            return self.message
        if shape == "anthropic":
            full = "{} tokens > {} maximum: ".format(*self.full) if self.full else ""
            return f"prompt is too long: {full}{self.message}"
        return f"This model's maximum context length is exceeded: {self.message}"

    def json(self, shape: Shape) -> str:
        """The same as text, for an event."""
        return json.dumps(self.body(shape), ensure_ascii=False)


_OPENAI = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
# The first that an error is an instance of.
_STATUS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], int, str | None], ...] = (
    (ContextExceeded, 400, "context_length_exceeded"),
    (MemoryExceeded, 400, "context_length_exceeded"),
    ((AdmissionFull, MailboxFull, SaveQueueFull), 429, "rate_limit_exceeded"),
    ((SystemStopped, EngineDied), 503, "unavailable"),
    # The file of the index: a full disk, one that fails, another program's lock.
    (sqlite3.DatabaseError, 503, "unavailable"),
    ((AgentNotStored, UnknownAgent), 404, "not_found"),
    (AgentExists, 409, "exists"),
    (AgentBusy, 409, "busy"),
    ((ExportRejected, ImportRejected), 400, None),
    # What roles follow each other is said by the request.
    ((InvalidInput, TemplateError), 400, None),
    (TurnTimeout, 504, "timeout"),
    (ClusterError, 503, "unavailable"),
    ((StorageError, KvactorsError), 500, None),
)


def refused(param: str, message: str, status: int = 400) -> Failure:
    """A request whose field `param` is wrong, as `message` says; answered with `status`."""
    return Failure(status, f"{param}: {message}", param)


def whole(ended: _Ended) -> _Ended:
    """An answer that has `ended` as its turn had to. Raises Failure for one that was cancelled by
    somebody else: what there is of it is not what was asked for."""
    if ended.reason == "cancelled":
        raise Failure(503, CANCELLED, None, "cancelled")
    return ended


def failure_of(error: BaseException) -> Failure:
    """What an `error` of a turn is answered with."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, ClientDisconnect):
        return Failure(499, "the client has gone away")
    if isinstance(error, HTTPException):
        return Failure(error.status_code, error.detail)
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            later = {"Retry-After": str(RETRY_SECONDS)} if status in (429, 503) else {}
            return Failure(status, str(error), None, code, later, _full(error))
    return Failure(500, "the server failed; its log says how")


def _full(error: BaseException) -> tuple[int, int] | None:
    """How much does not fit into a context, and how much does, if somebody counted."""
    if not isinstance(error, ContextExceeded) or error.prompt is None or error.most is None:
        return None
    return error.prompt, error.most


def failed_late(error: BaseException) -> Failure:
    """What an `error` is told as that comes when the headers of an answer are sent: it has no
    status, so that the log says here what failed."""
    failure = failure_of(error)
    if failure.status == 500:
        logger.error("an answer failed", exc_info=error)
    return failure


def _invalid(error: RequestValidationError) -> Failure:
    """400 with the first wrong field named, without what the client sent."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:]) or "the body"
    return refused(place, first["msg"])


def failure_response(error: BaseException, shape: Shape) -> JSONResponse:
    """An answer that says what an `error` was, in this `shape`."""
    failure = failure_of(error)
    return JSONResponse(failure.body(shape), failure.status, dict(failure.headers))
