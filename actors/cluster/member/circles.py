"""Behaviours of different nodes that would wait for each other's answers for ever.

A node follows what a long wait depends on, from node to node. Where that comes back, it looks once
more: what is open both times was so in between, all of it at one moment, so that nobody in the
circle will ever be answered. The youngest of its asks raises AskCycle. On the loop of the node.
"""

import asyncio
import time
from contextlib import suppress
from itertools import count
from uuid import uuid4

from kvactors.actors.cluster.protocol.client import Client
from kvactors.actors.cluster.protocol.errors import ClusterError
from kvactors.actors.cluster.protocol.interfaces import Transport
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.actors.runtime.waits import Answer, Waits, ask_cycle

__all__ = ["Circles", "new_ticket"]

SELDOM = 64.0
"""Seconds between two looks at one wait, at most: they are twice as many each time."""
LONGEST = 1_000
"""Of a circle."""

_PROCESS, _COUNT = uuid4().hex, count()


def new_ticket() -> str:
    """A name for an ask, unlike any other in the cluster; those of younger asks are greater, as far
    as clocks agree. Any thread."""
    return f"{time.time_ns():020d}-{_PROCESS}-{next(_COUNT)}"


class Circles:
    """Those that answers in `waits` of one node are part of. `client` knows the owners, which
    `transport` reaches; `settings` say when it looks, and how long each call is waited for."""

    def __init__(
        self, waits: Waits, client: Client, transport: Transport, settings: Settings
    ) -> None:
        self._waits, self._client, self._transport = waits, client, transport
        self._seconds, self._least = settings.call, settings.look
        # When each is looked at next, and how long after that again.
        self._looks: dict[Answer, tuple[float, float]] = {}

    async def run(self) -> None:
        """Look, until cancelled."""
        while True:
            await asyncio.sleep(self._least)
            for answer in self._due():
                with suppress(ClusterError):
                    await self._look(answer)

    def _due(self) -> list[Answer]:
        now = time.monotonic()
        waiting = [answer for answer in self._waits.endless(self._least) if answer.ticket]
        self._looks = {answer: self._looks.get(answer, (now, self._least)) for answer in waiting}
        due = [answer for answer, (at, _) in self._looks.items() if at <= now]
        for answer in due:
            _, pause = self._looks[answer]
            self._looks[answer] = (now + pause, min(2 * pause, SELDOM))
        return due

    async def _look(self, answer: Answer) -> None:
        circle = await self._circle(answer)
        if not circle or answer.ticket != max(ticket for _, ticket in circle):
            return
        if await self._circle(answer) == circle and answer in self._waits.endless(self._least):
            answer.reject(ask_cycle([agent for agent, _ in circle]))

    async def _circle(self, answer: Answer) -> list[tuple[str, str]]:
        """What it depends on, agents and tickets, itself first, if that is itself."""
        path = {answer.ticket: answer.receiver}
        last = answer.ticket
        while len(path) < LONGEST:
            owner, _ = await self._client.find(path[last])
            record = {"ticket": last}
            found = await self._transport.call(owner, "waits", record, within=self._seconds)
            if not found["waits"]:
                return []
            for agent, last in found["waits"]:
                if last == answer.ticket:
                    return [(agent, ticket) for ticket, agent in path.items()]
                if last in path:  # A circle that it waits for.
                    return []
                path[last] = agent
        return []
