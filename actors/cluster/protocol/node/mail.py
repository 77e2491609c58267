"""Messages that come for the agents of a node: into their mailboxes, or back to who sent them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from kvactors.actors.cluster.protocol.behaviours import Behaviours
from kvactors.actors.cluster.protocol.errors import (
    AgentBusy,
    AgentMoving,
    ClusterError,
    HostFailed,
    StaleEpoch,
    Unreachable,
)
from kvactors.actors.cluster.protocol.interfaces import Clock, Letter, Record
from kvactors.actors.cluster.protocol.locks import Locks
from kvactors.actors.cluster.protocol.node.forks import Forks
from kvactors.actors.cluster.protocol.node.owner import Owner
from kvactors.actors.cluster.protocol.node.serving import Serving
from kvactors.actors.cluster.protocol.node.speaking import Speaking
from kvactors.actors.cluster.protocol.records import ADOPTED, Settings
from kvactors.actors.cluster.protocol.waiting import done_soon
from kvactors.core.errors import MailboxFull, TurnTimeout

__all__ = ["Mail"]

LOOK = 0.02
"""Seconds between two looks at whether an agent that leaves is done with its mail, or an answer may
be given by now."""
KEPT = 4
"""Leases for which an answer waits until it may be given: its node may be cut off for ever from the
directory, and not from who asked."""
OUTBOXES = 1_000
"""Those that were used last: whose calls are remembered, as one may come late."""


class Mail:
    """Of the node `name`, for `behaviours` of agents that are `owner`'s and in memory, as `serving`
    knows; `forks` brings them there, with their lock of `locks`. What is handed over needs no lock:
    a behaviour takes turns, which do. How long is waited stands in `settings`, by `clock`;
    `speaking` knows which answers may leave."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        behaviours: Behaviours,
        owner: Owner,
        forks: Forks,
        serving: Serving,
        *,
        locks: Locks,
        settings: Settings,
        speaking: Speaking,
    ) -> None:
        self._name, self._clock, self._owner, self._forks = name, clock, owner, forks
        self._behaviours, self._speaking = behaviours, speaking
        self._serving, self._locks, self._settings = serving, locks, settings
        # As often as somebody takes one away: who gave up is not the only one.
        self._leaving: list[str] = []
        self._coming: dict[str, asyncio.Task[None]] = {}
        # The number of the last call of each outbox for each agent.
        self._last: dict[str, dict[str, int]] = {}

    async def take(self, record: Record) -> Record:
        """The first of what `stream` gives: all there is where nobody asks."""
        async with aclosing(self.stream(record)) as items:
            return await anext(items)

    async def stream(self, record: Record) -> AsyncGenerator[Record, None]:
        """Messages for several agents, each with the epoch in which it was found here. First, for
        each of these, how many were taken and why the rest was not ("groups"), and which of the
        taken ones a mailbox "refused"; then "answers" as they come. Messages are named by their
        number in the call; "lost" are those whose answers are not this node's to give any more."""
        self._refuse_known(record)
        call, numbered = _Call(self._behaviours, self._permission), 0
        groups: list[Any] = []
        for agent, epoch, letters in record["mail"]:
            groups.append(self._group(call, agent, epoch, numbered, letters))
            numbered += len(letters)
        yield {"groups": await asyncio.gather(*groups), "refused": call.refused}
        while call.open:
            await call.answered()
            # Without a pause before they are given.
            if any(given := call.given()):
                yield {"answers": given[0], "lost": given[1]}
            else:
                await self._clock.sleep(LOOK)

    async def serve(self, record: Record) -> Record:
        """An agent is in memory, and its behaviour has begun. Raises as a turn does."""
        agent = record["agent"]
        async with self._locks.of(agent):
            held = await self._forks.served(agent)
            if ADOPTED not in held.place.options:
                # It may behave for long before its first turn.
                await self._owner.commit(held)
                return {}
        # By now it may be known what it is spawned with: that is in another claim.
        async with self.shut(agent), self._locks.of(agent):
            self._owner.drop(agent)
            await self._serving.end(agent)
            await self._owner.commit(await self._forks.served(agent))
        return {}

    async def waits(self, record: Record) -> Record:
        """For whose answers an answer of this node waits: see Behaviours."""
        return {"waits": self._behaviours.waits(record["ticket"])}

    @asynccontextmanager
    async def shut(self, agent: str) -> AsyncIterator[None]:
        """Meanwhile an agent leaves: its behaviour is done with what it had, and gets no more. What
        comes for it waits for where it arrives. Raises AgentMoving where that takes too long."""
        until = self._clock.now() + self._settings.bring / 2
        self._leaving.append(agent)
        try:
            while self._behaviours.busy(agent):
                if self._clock.now() > until:
                    raise AgentMoving(agent=agent)
                await self._clock.sleep(LOOK)
            yield
        finally:
            self._leaving.remove(agent)

    def _refuse_known(self, record: Record) -> None:
        """Raises Unreachable for a call that has come before, or behind a later one to the same
        agent: what became of it nobody knows here."""
        outbox, number = record["from"], record["number"]
        self._last[outbox] = last = self._last.pop(outbox, {})
        if len(self._last) > OUTBOXES:
            del self._last[next(iter(self._last))]
        agents = [agent for agent, *_ in record["mail"]]
        if any(number <= last.get(agent, -1) for agent in agents):
            raise Unreachable(to=self._name, method="mail")
        last.update(dict.fromkeys(agents, number))

    async def _group(
        self, call: "_Call", agent: str, epoch: int, first: int, letters: list[Any]
    ) -> list[Any]:
        try:
            await self._ready(agent)
            self._refuse_late(agent, epoch)
        except Exception as error:
            return [0, _record(error)]
        # Without a pause since: it is here.
        for taken, letter in enumerate(letters):
            if not call.deliver(agent, first + taken, Letter(*letter)):
                return [taken, AgentBusy(agent=agent).to_record()]
        return [len(letters), None]

    def _refuse_late(self, agent: str, epoch: int) -> None:
        """Raises StaleEpoch for what was sent to who had the agent before, though that be this
        node: what was sent since may have been taken elsewhere."""
        held = self._owner.current(agent)
        assert held is not None
        if epoch < held.since:
            raise StaleEpoch(agent=agent, epoch=epoch, held=held.since)

    def _permission(self, agent: str) -> Callable[[], bool]:
        """For what `agent` answers now: see Speaking. What is not known for long is a no."""
        may = self._speaking.permit(agent, lambda: self._serving.has(agent))
        until = self._clock.now() + KEPT * self._settings.lease

        def may_in_time() -> bool:
            try:
                return may()
            except ClusterError:
                if self._clock.now() < until:
                    raise
                return False

        return may_in_time

    async def _ready(self, agent: str) -> None:
        """It is here, in memory, and stays while nobody pauses. Raises AgentMoving where that takes
        long, so that it holds up no others' messages."""
        if self._is_here(agent):
            return
        if agent not in self._leaving:
            if agent not in self._coming:
                self._coming[agent] = coming = asyncio.create_task(self._come(agent))
                coming.add_done_callback(lambda coming: self._came(agent, coming))
            coming = self._coming[agent]
            if await done_soon(self._clock, coming, self._settings.call / 2):
                await coming
        if not self._is_here(agent):
            raise AgentMoving(agent=agent)

    def _is_here(self, agent: str) -> bool:
        held = self._owner.current(agent)
        claimed = held is not None and held.whole
        return claimed and self._serving.has(agent) and agent not in self._leaving

    def _came(self, agent: str, coming: asyncio.Task[None]) -> None:
        del self._coming[agent]
        if not coming.cancelled():
            # Where nobody waits any more nobody is told.
            coming.exception()

    async def _come(self, agent: str) -> None:
        async with self._locks.of(agent):
            await self._forks.served(agent)


@dataclass(slots=True)
class _Answer:
    """To the message of this `number`; `may` it leave? See Speaking."""

    number: int
    body: bytes
    may: Callable[[], bool]


class _Call:
    """One call with messages for agents with `behaviours`: what became of them. `permit` is asked
    when an agent answers."""

    def __init__(self, behaviours: Behaviours, permit: Callable[[str], Callable[[], bool]]) -> None:
        self._behaviours, self._permit = behaviours, permit
        self._answers: list[_Answer] = []
        self._some = asyncio.Event()
        self.refused: list[tuple[int, Record]] = []
        self.open = 0

    def deliver(self, agent: str, number: int, letter: Letter) -> bool:
        """Hand the `letter` of this `number` over to `agent`, if there is room for it."""

        def answered(body: bytes) -> None:
            self._answers.append(_Answer(number, body, self._permit(agent)))
            self._some.set()

        try:
            if letter.seconds is not None and letter.seconds <= 0:
                raise TurnTimeout(f"{agent!r} was not reached in time: it has not begun")
            self._behaviours.deliver(agent, letter, answered)
            self.open += letter.asks
        except MailboxFull:
            return False
        except Exception as error:
            self.refused.append((number, _record(error)))
        return True

    async def answered(self) -> None:
        """Return when some answer is there."""
        await self._some.wait()

    def given(self) -> tuple[list[tuple[int, bytes]], list[int]]:
        """The answers that may leave now, and the numbers of those that never will."""
        given: list[tuple[int, bytes]] = []
        lost: list[int] = []
        kept = []
        for answer in self._answers:
            try:
                if answer.may():
                    given.append((answer.number, answer.body))
                else:
                    lost.append(answer.number)
            except ClusterError:
                kept.append(answer)
        self._answers = kept
        if not kept:
            self._some.clear()
        self.open -= len(given) + len(lost)
        return given, lost


def _record(error: Exception) -> Record:
    known = error if isinstance(error, ClusterError) else HostFailed.of(error)
    return known.to_record()
