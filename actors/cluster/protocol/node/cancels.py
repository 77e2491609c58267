"""Turns that shall end before their time."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from kvactors.actors.cluster.protocol.interfaces import Host, Record
from kvactors.actors.cluster.protocol.node.owner import Owner

__all__ = ["Cancels"]


class Cancels:
    """What runs of the agents of `host` that are `owner`'s, and which requests shall not begin. In
    memory: that one was withdrawn, which is a turn that `take` takes, stands in the ledger."""

    def __init__(
        self, host: Host, owner: Owner, take: Callable[[Record], Awaitable[Record]]
    ) -> None:
        self._host, self._owner, self._take = host, owner, take
        self._running: dict[str, str] = {}
        # Of each agent: another one's request may have the same id.
        self._ending: list[tuple[str, str]] = []

    async def running(self, record: Record) -> Record:
        """The id of the request of an agent whose turn runs here, if one does."""
        self._owner.current(record["agent"])
        return {"request": self._running.get(record["agent"])}

    async def cancel(self, record: Record) -> Record:
        """End the turn of a request, with what it has said by now, or see to it that there never
        will be one. Answers as the turn does."""
        agent, request = record["agent"], record["request"]
        self._ending.append((agent, request))
        try:
            if self._running.get(agent) == request:
                await self._host.cancel(agent)
            return await self._take({"agent": agent, "request": _withdrawn(request)})
        finally:
            self._ending.remove((agent, request))

    @contextmanager
    def taking(self, agent: str, request: Record) -> Iterator[Record]:
        """With the lock of `agent` held: what to do for `request`, which runs meanwhile."""
        name = request["id"]
        self._running[agent] = name
        try:
            yield _withdrawn(name) if (agent, name) in self._ending else request
        finally:
            del self._running[agent]


def _withdrawn(request: str) -> dict[str, str]:
    return {"id": request, "kind": "withdraw"}
