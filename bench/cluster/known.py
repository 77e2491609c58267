"""A cluster that knows a million agents, of which ten thousand of a node are in memory at once.

    python -m kvactors.bench.cluster.known [--quick]

Regime: one directory over its journal, a file, which goes its rounds; nodes in the same process
whose turns are made of names (no model: 2 to 80 ms each), with leases of 3 s; turns durable on two.
Agents are woken in a random order, more of them on each node than may be in memory; each has one
turn. Then the directory is begun again over its journal, which is written anew the next time.

It ends with status 1 if more agents were in memory than may be, but for those whose turns ran just
then, if a node missed a renewal or lost its lease, or if the next directory knows less.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from kvactors.actors.cluster.machine.clock import MonotonicClock
from kvactors.actors.cluster.machine.direct import DirectTransport
from kvactors.actors.cluster.machine.journal import FileJournal
from kvactors.actors.cluster.protocol.client import Client
from kvactors.actors.cluster.protocol.directory.server import Directory
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.node.server import Node
from kvactors.actors.cluster.protocol.records import Place, Settings
from kvactors.actors.cluster.testing.machines.disk import Disk, SimJournal
from kvactors.actors.cluster.testing.machines.host import ModelHost
from kvactors.actors.cluster.testing.machines.process import Process
from kvactors.bench.report import print_json, print_table

__all__ = ["FULL", "QUICK", "Found", "Sizes", "main", "wake"]

DIRECTORY = "directory"
AGENT = 2**20
"""Bytes that the host of a node says it has in memory for each agent."""
AT_ONCE = 64
NOTED = 10_000
PATIENCE = 120.0
LOOKS = 0.005


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many `agents` are known, on how many `nodes`, that have so many in memory (`served`); and
    how many are `woken` in all."""

    agents: int
    nodes: int
    served: int
    woken: int


FULL = Sizes(1_000_000, 2, 10_000, 25_000)
QUICK = Sizes(20_000, 2, 200, 700)


@dataclass(frozen=True, slots=True)
class Found:
    """What was seen. Seconds, but for counts."""

    known: int
    woken: dict[str, int]
    served: int
    """Of one node at once, at most ..."""
    left: int
    """... and after the last turn."""
    turns_per_s: float
    renewal: float
    """The longest between two that a node was answered."""
    pause: float
    """The longest for which nothing else could run on the loop."""
    restart: float
    """Until the next directory had read its journal ..."""
    journal_mb: float
    """... of so much ..."""
    rewrite: float
    """... and until that was written anew, while it answered ..."""
    rewrite_pause: float
    """... but for pauses of so long."""
    again: int
    """How many agents the next directory knows."""

    def wrong(self, sizes: Sizes, lease: float) -> list[str]:
        """What does not hold, of so many `sizes`, with a `lease` of so many seconds."""
        holds = {
            f"each node has woken more than {sizes.served}": min(self.woken.values())
            > sizes.served,
            f"at most {sizes.served} and what runs are in memory": self.served
            <= sizes.served + AT_ONCE,
            f"at most {sizes.served} are in memory in the end": self.left <= sizes.served,
            f"no node goes {lease} s without a renewal": self.renewal < lease,
            "the next directory knows all": self.again == self.known == sizes.agents,
        }
        return [what for what, does in holds.items() if not does]


class _Renewals(DirectTransport):
    """Sees when each node's lease was renewed."""

    def __init__(self) -> None:
        super().__init__({})
        self._last: dict[str, float] = {}
        self.longest = 0.0

    async def call(
        self, to: str, method: str, record: Record, *, within: float | None = None
    ) -> dict[str, Any]:
        """As ever."""
        sent = time.perf_counter()
        answer = await super().call(to, method, record, within=within)
        if method == "renew":
            # It counts from before it was asked for; it must be known before the last one ends.
            before = self._last.get(record["node"], sent)
            self.longest = max(self.longest, time.perf_counter() - before)
            self._last[record["node"]] = sent
        return answer


class _World:
    """A directory over a file in `folder`, and nodes."""

    def __init__(self, sizes: Sizes, folder: Path, settings: Settings) -> None:
        self.sizes, self.settings = sizes, settings
        self.transport, self._path = _Renewals(), folder / "directory.journal"
        self.names = [f"node-{number}" for number in range(sizes.nodes)]
        self.hosts: dict[str, ModelHost] = {}
        self._running: list[asyncio.Task[None]] = []
        self._rng = Random(1)
        self.directory = self._directory()

    def _directory(self) -> Directory:
        journal = FileJournal(self._path, DIRECTORY)
        directory = Directory(self.transport, MonotonicClock(), journal, self.settings)
        self.transport.places[DIRECTORY] = directory
        return directory

    async def begin(self) -> None:
        """All agents are known, and all nodes have joined."""
        for name in self.names:
            await self._begin(name)
        for first in range(0, self.sizes.agents, NOTED):
            numbers = range(first, min(first + NOTED, self.sizes.agents))
            await self.directory.registry.note(places=[self._place(n) for n in numbers])
        self._runs(self.directory.run())

    async def _begin(self, name: str) -> None:
        process = Process(name, asyncio.get_running_loop())
        disk = Disk(self._rng, lambda *_: None)
        host = self.hosts[name] = ModelHost(process, disk, self._rng)
        journal, clock = SimJournal(process, disk), MonotonicClock()
        node = Node(name, self.transport, clock, journal, host, settings=self.settings)
        self.transport.places[name] = node
        await node.begin()
        self._runs(node.run())

    def _place(self, number: int) -> Place:
        node = self.names[number % len(self.names)]
        options = {"system_prompt": None}
        return Place(f"agent {number}", node, 0, 1, None, f"group {number % 100}", 1, options)

    def _runs(self, work: Any) -> None:
        self._running.append(asyncio.create_task(work))

    def served(self) -> int:
        """How many a node has in memory, at most."""
        return max(int(host.load()["bytes"]) // AGENT for host in self.hosts.values())

    async def end(self) -> None:
        """Nothing runs any more."""
        running, self._running = self._running, []
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def again(self) -> dict[str, float]:
        """Another directory over the same journal: how long it takes, and what it knows."""
        size = self._path.stat().st_size
        begun = time.perf_counter()
        self.directory = self._directory()
        restart = time.perf_counter() - begun
        with _watched(self) as most:
            begun = time.perf_counter()
            await self.directory.registry.rewrite()
            rewrite = time.perf_counter() - begun
        known = (await self.directory.handle("stats", {}))["agents"]
        found = {"restart": restart, "journal_mb": size / 1e6, "again": known}
        return {**found, "rewrite": rewrite, "rewrite_pause": most["pause"]}


@contextmanager
def _watched(world: _World) -> Iterator[dict[str, float]]:
    """The longest pause of the loop, and the most agents in memory, meanwhile."""
    most = {"pause": 0.0, "served": 0}

    async def look() -> None:
        while True:
            slept = time.perf_counter()
            await asyncio.sleep(LOOKS)
            most["pause"] = max(most["pause"], time.perf_counter() - slept - LOOKS)
            most["served"] = max(most["served"], world.served())

    looking = asyncio.create_task(look())
    yield most
    looking.cancel()


async def wake(sizes: Sizes, folder: Path, settings: Settings) -> Found:
    """Agents of these `sizes` with a journal in `folder`, in a cluster of these `settings`."""
    world = _World(sizes, folder, replace(settings, served=sizes.served))
    await world.begin()
    client = Client(world.transport, MonotonicClock(), world.settings)
    order = iter(Random(2).sample(range(sizes.agents), sizes.woken))
    woken = dict.fromkeys(world.names, 0)

    async def ask() -> None:
        for number in order:
            request = {"id": f"r{number}", "text": f"hello, {number}"}
            given = await client.turn(f"agent {number}", request, PATIENCE)
            assert given["durable"]
            assert given["answer"]["index"] == 0
            woken[given["node"]] += 1

    with _watched(world) as most:
        begun = time.perf_counter()
        await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
        seconds = time.perf_counter() - begun
        known = len(world.directory.registry.places)
        left = world.served()
        _check_leases(world)
    await world.end()
    renewal = world.transport.longest
    again = await world.again()
    return Found(
        known=known,
        woken=woken,
        left=left,
        turns_per_s=sizes.woken / seconds,
        renewal=renewal,
        served=int(most["served"]),
        pause=most["pause"],
        **{**again, "again": int(again["again"])},  # type: ignore[arg-type]
    )


def _check_leases(world: _World) -> None:
    """None has ended."""
    for member in world.directory.registry.members.values():
        assert (member.incarnation, member.fenced) == (1, False), member


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table and one JSON line; 1 if something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few agents, seconds")
    sizes = QUICK if parser.parse_args(arguments).quick else FULL
    settings = Settings()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(wake(sizes, Path(folder), settings))
    wrong = found.wrong(sizes, settings.lease)
    title = f"{sizes.agents:,} agents on {sizes.nodes} nodes, {sizes.woken:,} of them woken"
    print_table(title, ("", "seen"), list(asdict(found).items()))
    print(*(f"\nDOES NOT HOLD: {what}" for what in wrong))
    print_json("known", sizes=asdict(sizes), rows=[asdict(found)], wrong=wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
