"""Whoever asks: finds an agent's owner, and asks again, with the same request, while it may."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from kvactors.actors.cluster.protocol.errors import (
    AgentBusy,
    AgentMoving,
    AgentUnavailable,
    AgentUnsure,
    Fenced,
    LeaseLost,
    LedgerGap,
    NoRoom,
    NotOwner,
    StaleEpoch,
    TurnLost,
    UnknownAgent,
    Unreachable,
)
from kvactors.actors.cluster.protocol.interfaces import Clock, Record, Transport
from kvactors.actors.cluster.protocol.records import Place, Settings
from kvactors.actors.cluster.protocol.waiting import Tries, done_soon

__all__ = ["PASSING", "Client", "forget"]

PASSING = (
    AgentBusy,
    AgentMoving,
    AgentUnavailable,
    AgentUnsure,
    Fenced,
    LeaseLost,
    LedgerGap,
    NoRoom,
    NotOwner,
    StaleEpoch,
    Unreachable,
)
"""What is over when it is tried again, a little later."""

# Calls that fail one after the other before an attempt does.
LASTING = 10
# Agents whose owners are known without a question.
MOST_OWNERS = 100_000


class Client:
    """Any number of calls at once over `transport`, on one loop; `settings` are the cluster's, and
    `clock` measures for how many seconds a call tries again once somebody is lost; for a request
    with a "timeout", from its beginning on. A request is taken once however often it is sent, as
    its "id" is in its ledger record."""

    def __init__(self, transport: Transport, clock: Clock, settings: Settings) -> None:
        self._clock, self._settings = clock, settings
        self.transport = transport
        self._owners: dict[str, tuple[str, int]] = {}

    async def spawn(self, agent: str, options: Record, group: str | None, seconds: float) -> Place:
        """A new agent's place, or of the one that there is. Raises AgentExists if that was spawned
        with other `options` or of another `group`, Unanswered after `seconds`."""
        record = {"agent": agent, "options": options, "group": group}
        return Place.from_record(await self.ask("spawn", record, seconds))

    async def turn(self, agent: str, request: Record, seconds: float) -> dict[str, Any]:
        """One turn of `agent` for `request`: its "answer", whether it is "durable", "epoch" and
        "node". Raises HostFailed, Unanswered after `seconds`."""
        record = {"agent": agent, "request": request}
        return await self._of_owner(agent, "turn", record, seconds, timed=_timed(request))

    async def stream(
        self, agent: str, request: Record, seconds: float
    ) -> AsyncIterator[dict[str, Any]]:
        """The same turn of `agent` for `request` in items, as `Node.stream` gives them, tried for
        `seconds`. After an item {"again": True} the tokens begin anew."""
        record = {"agent": agent, "request": request}
        trying = self.tries(agent, seconds, timed=_timed(request))
        given = False
        while not given:
            try:
                owner, _ = await self.find(agent)
                async for item in self.transport.stream(owner, "turn", record):
                    given = given or "answer" in item
                    yield dict(item)
                return
            except PASSING as error:
                self.lost(agent)
                if not given:
                    yield {"again": True}
                await trying.wait(error)
        yield {
            "durable": await self.confirm(
                agent, request["id"], max(trying.left(), self._settings.call)
            )
        }

    async def running(self, agent: str, seconds: float) -> str | None:
        """The id of the request of `agent` whose turn runs, if one does. Unanswered after so many
        `seconds`."""
        found = await self._of_owner(agent, "running", {"agent": agent}, seconds)
        return None if found["request"] is None else str(found["request"])

    async def cancel(self, agent: str, request: str, seconds: float) -> dict[str, Any]:
        """End the turn of `agent` for the `request` of this id, or see to it that there will be
        none: what `turn` gives. Unanswered after `seconds`: then nobody knows."""
        record = {"agent": agent, "request": request}
        return await self._of_owner(agent, "cancel", record, seconds)

    async def fork(self, agent: str, child: str, request: str, seconds: float) -> bool:
        """A new agent, `child`, that remembers what `agent` does; whether that is durable. Once for
        a `request`, of this id. Raises AgentExists, ForkLost, Unanswered after `seconds`."""
        record = {"agent": agent, "child": child, "request": request}
        await self._of_owner(agent, "fork", record, seconds)
        begun = await self._of_owner(child, "begin", {"agent": child}, seconds)
        return bool(begun["durable"])

    async def confirm(self, agent: str, request: str, seconds: float) -> bool:
        """Whether a turn that `agent` answered to the `request` of this id is durable by now.
        Raises TurnLost if it never will, Unanswered after `seconds`."""
        record = {"agent": agent, "request": request}
        answer = await self._of_owner(agent, "confirm", record, seconds)
        if not answer["known"]:
            raise TurnLost(agent=agent, request=request)
        return bool(answer["durable"])

    async def cached(self, agent: str, request: str, seconds: float) -> bool:
        """Whether KV of the turn that answered the `request` of this id is on disk where `agent`
        lives: once that is known. Raises HostFailed where writing it failed, Unanswered after
        `seconds` without an owner."""
        record = {"agent": agent, "request": request}
        return bool((await self._of_owner(agent, "cached", record, seconds))["cached"])

    async def read(self, agent: str, start: int, seconds: float) -> dict[str, Any]:
        """The "records" of the ledger of `agent` from the `start`-th on, and the "epoch": no turn
        is missing that was called durable to anyone before this. Unanswered after `seconds`."""
        return await self._of_owner(agent, "read", {"agent": agent, "start": start}, seconds)

    async def model(self, seconds: float) -> dict[str, Any]:
        """What a node that lives says of its model: the "name" of that, its "tokenizer",
        "vocabulary" and "context". Unanswered after `seconds`."""
        trying = self.tries("a node", seconds)
        while True:
            try:
                node = _alive(await self._directory("stats", {}))
                most = self._settings.call
                return dict(await self.transport.call(node, "model", {}, within=most))
            except PASSING as error:
                await trying.wait(error)

    async def ask(self, method: str, record: Record, seconds: float) -> dict[str, Any]:
        """What the directory answers to a `method` of `record`. Unanswered after `seconds`."""
        trying = self.tries("the directory", seconds)
        while True:
            try:
                return await self._directory(method, record)
            except PASSING as error:
                await trying.wait(error)

    def tries(self, what: str, seconds: float, *, timed: bool = False) -> Tries:
        """For how long it is tried to reach `what`: `seconds` from its loss on, or (`timed`) from
        now on."""
        # Whom nobody hears is given up before that: see Settings.
        lasting = self._settings.lease + LASTING * self._settings.call
        return Tries(self._clock, what, seconds, None if timed else lasting)

    def lost(self, agent: str) -> None:
        """Who had it has it no more: the directory is asked again."""
        self._owners.pop(agent, None)

    async def serve(self, agent: str, seconds: float) -> None:
        """Have it in the memory of its owner, its behaviour begun. Unanswered after `seconds`."""
        # It is waited for who leaves, which lasts.
        await self._of_owner(agent, "serve", {"agent": agent}, seconds, timed=True)
        # That was another epoch, if it was claimed for this.
        self.lost(agent)

    async def _of_owner(
        self, agent: str, method: str, record: Record, seconds: float, *, timed: bool = False
    ) -> dict[str, Any]:
        trying = self.tries(agent, seconds, timed=timed)
        while True:
            try:
                owner, _ = await self.find(agent)
                return await self._while_owner(agent, owner, method, record)
            except PASSING as error:
                self.lost(agent)
                await trying.wait(error)

    async def find(self, agent: str) -> tuple[str, int]:
        """That node, and in which epoch it was found there. Raises UnknownAgent, Unreachable."""
        if agent not in self._owners:
            place = await self._directory("find", {"agent": agent})
            if len(self._owners) >= MOST_OWNERS:
                self.lost(next(iter(self._owners)))
            self._owners[agent] = (place["node"], place["epoch"])
        return self._owners[agent]

    async def _while_owner(
        self, agent: str, owner: str, method: str, record: Record
    ) -> dict[str, Any]:
        """A turn may take long, and a node that stands still gives no sign: the directory is asked
        now and then whether it is worth while to wait."""
        call = asyncio.ensure_future(self.transport.call(owner, method, record))
        try:
            while not await done_soon(self._clock, call, self._settings.lease):
                if (await self._directory("find", {"agent": agent}))["node"] != owner:
                    raise NotOwner(agent=agent, node=owner)
            return dict(await call)
        finally:
            call.cancel()

    async def _directory(self, method: str, record: Record) -> dict[str, Any]:
        answer = await self.transport.call("directory", method, record, within=self._settings.call)
        return dict(answer)


async def forget(client: Client, agent: str, seconds: float) -> None:
    """Let `agent` be no more, on any node that `client` knows of; one that was forgotten already is
    none. Another that has its name by then stays. Raises UnknownAgent, Unanswered after `seconds`.
    """
    known = (await client.ask("whose", {"agents": [agent]}, seconds)).get(agent)
    if known is None:
        raise UnknownAgent(agent=agent)
    if known["node"] is not None:
        await client.ask("forget", {"agent": agent, "born": known["born"]}, seconds)
    client.lost(agent)


def _timed(request: Record) -> bool:
    return request.get("timeout") is not None


def _alive(stats: Record) -> str:
    for name, node in sorted(stats["nodes"].items()):
        if node["alive"]:
            return str(name)
    raise Unreachable(to="any node", method="model")
