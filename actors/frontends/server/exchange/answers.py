"""Answers: what the interfaces ask of the server's core, and what they get. The event loop."""

from collections.abc import AsyncGenerator
from typing import Protocol

from kvactors.actors.frontends.server.exchange.events import Event, Opened
from kvactors.actors.frontends.server.exchange.inquiry import Inquiry
from kvactors.core.errors import KvactorsError

__all__ = ["AgentBusy", "Answer", "Answers"]


class AgentBusy(KvactorsError):
    """The agent answers somebody else; nothing was done."""

    def __init__(self, agent_id: str) -> None:
        super().__init__(f"agent {agent_id!r} is busy with another request: fork it, or come again")


class Answer(Protocol):
    """A turn that was taken. Iterating gives its events, from the first one; it may be iterated
    anew, also while it runs. Leaving the iteration early (`aclose`) lets go of it: a turn that
    nobody reads any more is cancelled. `opened` says who takes it."""

    opened: Opened

    def __aiter__(self) -> AsyncGenerator[Event, None]: ...


class Answers(Protocol):
    """Takes turns."""

    async def open(self, inquiry: Inquiry, *, key: str = "") -> Answer:
        """Take a turn, or attach to the one in flight with the same `key` (of path, API key and
        body). Returns once it is queued, before it is admitted. Raises AgentNotStored for what
        `goes_on` does not know, and what `Agent.ask` raises at once: InvalidInput (400),
        MailboxFull, AdmissionFull and SaveQueueFull (429), SystemStopped and EngineDied (503)."""
        ...

    def count(self, inquiry: Inquiry) -> int:
        """How many tokens its prompt would have. Raises InvalidInput."""
        ...
