"""Clusters whose nodes begin over stores that were restored, and a directory that knows nothing."""

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

import msgpack  # type: ignore[import-untyped]

from kvactors.actors.cluster.protocol.errors import ForkLost, HostFailed, UnknownAgent
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.testing.faults import early
from kvactors.actors.cluster.testing.machines.host import texts
from kvactors.actors.cluster.testing.world import DIRECTORY, World

__all__ = ["FORGOTTEN", "Restored"]

FORGOTTEN = "f0"
"""Restored, and forgotten then: it must not come back."""
PATIENCE = 90.0
LOOK = 0.05
Ledgers = dict[str, list[bytes]]


class Restored:
    """Old turns of the agents of `world`, drawn from `seed`, in the stores of its nodes: of one in
    one store or in two, the same, or more in one, or parted. In some worlds the directory's journal
    was lost, and those of the nodes say in which epochs they had what."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._rng = Random(f"{seed} restored")
        self._held: dict[str, Ledgers] = {}
        self._promised: dict[tuple[str, str], int] = {}
        self._forgets: asyncio.Task[None] | None = None
        lost = self._rng.random() < 0.3
        for agent in [*world.agents, FORGOTTEN]:
            if agent == FORGOTTEN or self._rng.random() < 0.8:
                self._held[agent] = self._draw(agent)
        for name in world.nodes:
            self._fill(name, lost=lost)

    async def begins(self) -> None:
        """All nodes have joined; faults have begun before that."""
        if self._rng.random() < 0.6:
            early(self._world, self._rng)
        self._world.loop.create_task(self._judge())
        self._forgets = self._world.loop.create_task(self._forget())
        while len(self._registry().members) < len(self._world.nodes):
            await asyncio.sleep(LOOK)

    async def ends(self) -> None:
        """All is quiet: everybody has a place and answers, and who was forgotten is not there."""
        if self._held.keys() - {FORGOTTEN}:
            self._say(f"never adopted: {sorted(self._held)}")
        client = self._world.client("the last one")
        for agent in self._world.agents:
            try:
                await client.turn(agent, {"id": f"last-{agent}", "text": f"last-{agent}"}, PATIENCE)
            except ForkLost as error:
                self._world.oracle.never_began(agent, str(error))
        assert self._forgets is not None
        await self._forgets
        until = self._world.loop.time() + PATIENCE
        while (there := self._world.ledgers(FORGOTTEN)) and self._world.loop.time() < until:
            await asyncio.sleep(1.0)
        if there or FORGOTTEN in self._registry().places:
            self._say(f"{FORGOTTEN} was forgotten, and is on {sorted(there)}")

    # What was restored

    def _draw(self, agent: str) -> Ledgers:
        rng = self._rng
        first, second = rng.sample(self._world.nodes, 2)
        whole = [_record(f"old-{agent}-{n}") for n in range(rng.randint(1, 5))]
        cut = rng.randint(0, len(whole))
        other = [_record(f"other-{agent}-{n}") for n in range(rng.randint(1, 4))]
        held: list[Ledgers] = [
            {first: whole},
            {first: whole, second: list(whole)},
            {first: whole, second: whole[:cut]},
            {first: whole, second: [*whole[:cut], *other]},
        ]
        return {name: ledger for name, ledger in rng.choice(held).items() if ledger}

    def _fill(self, name: str, *, lost: bool) -> None:
        files = self._world.machines[name].disk.files
        for agent, held in self._held.items():
            if name in held:
                files["ledgers"][agent] = list(held[name])
                self._promised[agent, name] = self._rng.randint(1, 4) if lost else 0
        if lost:
            promises = {agent: epoch for (agent, n), epoch in self._promised.items() if n == name}
            noted = {"incarnation": 3, "disk": f"that of {name}", "promises": promises}
            files["journal"] = [noted]
            # It has read that there is none.
            self._world.kill(name)
            self._world.start(name)

    # What becomes of it

    async def _judge(self) -> None:
        """Tell the oracle what must be there, as soon as an agent has a place."""
        while self._held.keys() - {FORGOTTEN}:
            await asyncio.sleep(LOOK)
            for agent in self._world.agents:
                if agent in self._held and agent in self._registry().places:
                    held = self._held.pop(agent)
                    best = self._best(agent, held)
                    said = [text for ledger in held.values() for text in texts(ledger)]
                    self._world.oracle.restored(agent, texts(held.get(best, [])), said)
                    self._world.say(f"{agent} was restored on {sorted(held)}: {best} has most")

    def _best(self, agent: str, held: Ledgers) -> str:
        """Of the nodes that had joined before the agent had a place: who had most, after the latest
        epoch. "" where a drain let the directory go on without some."""
        joined: set[str] = set()
        for record in self._journal():
            if any(place["agent"] == agent for place in record.get("places", ())):
                break
            if any(member["draining"] for member in record.get("members", ())):
                return ""
            joined |= {member["node"] for member in record.get("members", ())}
        there = [(self._promised[agent, n], len(held[n]), n) for n in held if n in joined]
        return max(there)[-1] if there else ""

    async def _forget(self) -> None:
        client = self._world.client("who forgets")
        while len(self._registry().members) < len(self._world.nodes):
            await asyncio.sleep(LOOK)
        await asyncio.sleep(self._rng.choice([0.0, 1.0, 8.0]) * self._rng.random())
        while True:
            try:
                await client.ask("forget", {"agent": FORGOTTEN}, PATIENCE)
                break
            except HostFailed as error:
                self._world.say(f"{FORGOTTEN} is not forgotten yet: {error}")
            except UnknownAgent as error:
                # Nobody waits for a node that was drained before it said what it has.
                if self._world.loop.time() > PATIENCE:
                    self._say(str(error))
                    return
            await asyncio.sleep(0.3)
        self._world.say(f"{FORGOTTEN} is forgotten")

    def _registry(self) -> Any:
        return self._world.machines[DIRECTORY].server.registry

    def _journal(self) -> list[Mapping[str, Any]]:
        journal: list[Record] = self._world.machines[DIRECTORY].disk.files.get("journal", [])
        return journal

    def _say(self, what: str) -> None:
        self._world.oracle.broken.append(what)


def _record(text: str) -> bytes:
    return bytes(msgpack.packb({"id": f"r-{text}", "text": text}))
