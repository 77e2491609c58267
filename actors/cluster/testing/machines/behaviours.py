"""Behaviours of the simulated world: each handles its messages one by one, and what it does then is
drawn. A message is its key and how many generations it may have."""

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import msgpack  # type: ignore[import-untyped]

from kvactors.actors.cluster.protocol.behaviours import Behaviours
from kvactors.actors.cluster.protocol.interfaces import Letter
from kvactors.actors.cluster.testing.machines.letters import LetterOracle, Life
from kvactors.actors.cluster.testing.machines.posting import Post
from kvactors.actors.cluster.testing.machines.process import Process
from kvactors.core.errors import MailboxFull, Undelivered

__all__ = ["DrawnBehaviours"]

CAPACITY = 4
HANDLING = (0.001, 0.15)
TIMEOUTS = (0.3, 1.0, 4.0)

Mail = tuple[Letter, Callable[[bytes], object]]


class _Begun:
    """A behaviour: its `life` for the oracle, what it has in hand, and how many of what it sent
    wait."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.mailbox: deque[Mail] = deque()
        self.some = asyncio.Event()
        self.open = 0
        self.task: asyncio.Task[None] | None = None


class DrawnBehaviours(Behaviours):
    """Of the agents of the node that `process` is. They send by `post` to some of `agents`, as
    `rng` draws; `oracle` sees what they take."""

    def __init__(
        self, process: Process, post: Post, oracle: LetterOracle, agents: list[str], rng: Random
    ) -> None:
        self._process, self._post, self._oracle = process, post, oracle
        self._agents, self._rng = agents, rng
        self._begun: dict[str, _Begun] = {}

    async def begin(self, agent: str, name: str | None, supervision: Any) -> None:
        """Every `agent` has one, whatever its `name` and `supervision`."""
        if agent not in self._begun:
            life = self._oracle.begins(agent, self._process.name, self._post.died)
            self._begun[agent] = begun = _Begun(life)
            begun.task = self._process.start(self._live(begun))

    async def end(self, agent: str) -> None:
        """Where it waits; what it has in hand is answered so."""
        if (begun := self._begun.pop(agent, None)) is None:
            return
        assert begun.task is not None
        begun.task.cancel()
        self._oracle.over(begun.life, begun.open)
        await asyncio.wait([begun.task])
        for letter, answered in begun.mailbox:
            if letter.asks:
                answered(msgpack.packb(None))

    def busy(self, agent: str, *, timers: bool = False) -> bool:
        """Whether `agent` has messages in hand, or sent some that wait; `timers` it has none."""
        return agent in self._begun and self._begun[agent].open > 0

    def deliver(self, agent: str, letter: Letter, answered: Callable[[bytes], object]) -> None:
        """Put `letter` to `agent`, which is `answered`, behind the others. Raises MailboxFull."""
        if (begun := self._begun.get(agent)) is None:
            raise Undelivered(f"{agent!r} does not behave")
        if len(begun.mailbox) >= CAPACITY:
            raise MailboxFull(f"{CAPACITY} messages wait")
        self._oracle.taken(msgpack.unpackb(letter.body)[0], begun.life)
        begun.mailbox.append((letter, answered))
        begun.open += 1
        begun.some.set()

    def waits(self, ticket: str) -> list[tuple[str, str]]:
        """None without a limit: no letter has a `ticket`."""
        return []

    async def _live(self, begun: _Begun) -> None:
        while True:
            while not begun.mailbox:
                begun.some.clear()
                await begun.some.wait()
            letter, answered = begun.mailbox[0]
            key, generations = msgpack.unpackb(letter.body)
            await self._process.wait(self._rng.uniform(*HANDLING))
            for _ in range(self._rng.choice([0, 1, 1, 3]) if generations else 0):
                await self._write(begun, generations - 1)
            begun.mailbox.popleft()
            if letter.asks:
                answered(msgpack.packb(key))
            begun.open -= 1

    async def _write(self, begun: _Begun, generations: int) -> None:
        """To somebody. An answer is waited for within some time: circles of those who wait end."""
        to = self._rng.choice(self._agents)
        if self._rng.random() < 0.2:
            seconds = self._rng.choice(TIMEOUTS)
            await self._post.asks(begun.life, to, generations, seconds)
        else:
            waits = to != begun.life.agent
            begun.open += waits
            told = self._post.sends(begun.life, to, generations)
            told.add_done_callback(lambda _: setattr(begun, "open", begun.open - waits))
            if self._rng.random() < 0.2 and waits:
                await told
