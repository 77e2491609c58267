"""What a directory takes of time and memory for the agents that it knows: regimes, and curves of
how it grows. Over the transport of one process: no Ray, no network."""

import asyncio
import random
import time
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from kvactors.actors.cluster.machine.clock import MonotonicClock
from kvactors.actors.cluster.machine.direct import DirectTransport
from kvactors.actors.cluster.protocol.directory.server import Directory
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.records import Member, Place, Settings
from kvactors.bench.regime import ANYWHERE, NOTHING_DECODED, Regime, Side, Sides
from kvactors.bench.setup import Setup

__all__ = ["KNOWN", "REGIMES", "Unwritten", "bytes_known", "look_up"]

NODES = 1_000
GROUPS = 100
FINDS = 50_000
# Look-ups between which others have their turn on the loop.
LOOK_UPS = 100
# Seconds: rounds come five times as often as by default.
LEASE = 0.6
AT_ONCE = 10_000
KNOWN = (1_000, 10_000, 100_000, 1_000_000)
FEW, SOME, MANY = 1_000, 10_000, 1_000_000
# By how much each one may grow where all grow by an order of 1.1.
TIME, BYTES = ((MANY / fewer) ** 0.1 for fewer in (FEW, SOME))


class Unwritten:
    """A journal of nothing: what is measured is memory."""

    def load(self) -> list[Record]:
        return []

    async def append(self, record: Record) -> None:
        pass

    async def replace(self, records: Iterable[Record]) -> None:
        pass


async def _directory(agents: int) -> Directory:
    """Of 1,000 nodes, with so many agents, each with a replica and one of 100 groups."""
    directory = Directory(DirectTransport({}), MonotonicClock(), Unwritten(), Settings(lease=LEASE))
    nodes = [f"node-{number}" for number in range(NODES)]
    await directory.registry.note(
        members=[Member(node, 1, f"the disk of {node}") for node in nodes]
    )
    for start in range(0, agents, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, agents))
        await directory.registry.note(places=[_place(number, nodes) for number in numbers])
    return directory


def _place(number: int, nodes: Sequence[str]) -> Place:
    node, replica = nodes[number % NODES], nodes[(number + 1) % NODES]
    options = {"system_prompt": None}
    group = f"group {number % GROUPS}"
    return Place(f"agent {number}", node, 1, 3, replica, group, 1, options)


def _seconds(directory: Directory, agents: int) -> float:
    """Of one look-up by name among so many, packed and unpacked as they cross, while the directory
    goes its rounds."""
    names = [f"agent {number}" for number in random.Random(agents).choices(range(agents), k=FINDS)]
    transport = DirectTransport({"directory": directory})

    async def find() -> float:
        await _renewed(directory)
        rounds = [asyncio.create_task(directory.run()), asyncio.create_task(_nodes(directory))]
        begin = time.perf_counter()
        for number, name in enumerate(names):
            await transport.call("directory", "find", {"agent": name})
            if number % LOOK_UPS == 0:
                await asyncio.sleep(0)
        seconds = time.perf_counter() - begin
        for task in rounds:
            task.cancel()
        await asyncio.gather(*rounds, return_exceptions=True)
        assert all(not member.fenced for member in directory.registry.members.values())
        return seconds

    return asyncio.run(find()) / FINDS


async def _nodes(directory: Directory) -> None:
    """All nodes renew their leases in time, and each time one of them has changed."""
    while True:
        await asyncio.sleep(LEASE / 4)
        await _renewed(directory)
        await directory.handle("drain", {"node": "node-0", "on": False})


async def _renewed(directory: Directory) -> None:
    load = {"bytes": 2**30, "waiting": 0}
    for node in directory.registry.members:
        await directory.handle("renew", {"node": node, "incarnation": 1, "load": load})


def _bytes(agents: int) -> float:
    """That Python has allocated for a directory of so many."""
    tracemalloc.start()
    directory = asyncio.run(_directory(agents))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(directory.registry.places) == agents
    return held


def look_up(_setup: Setup, sizes: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Time of a look-up in a directory of 1,000 nodes that knows so many agents, by a random name,
    over the transport of one process. Meanwhile the nodes renew leases of 0.6 s, and the directory
    goes its rounds, each time with something that has changed."""
    for size in sizes:
        yield size, _seconds(asyncio.run(_directory(size)), size)


def bytes_known(_setup: Setup, sizes: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Bytes that Python has allocated for such a directory."""
    for size in sizes:
        yield size, _bytes(size)


@contextmanager
def look_ups(setup: Setup) -> Iterator[Sides]:
    """Look-ups a second in a directory of 1,000 nodes that knows 1,000,000 agents, each with
    a replica, by random names over the transport of one process, against 1,000 agents: the target
    is that the time of all grows by an order of 1.1. Meanwhile the nodes renew leases of 0.6 s, and
    the directory goes its rounds, each time with something that has changed."""
    many, few = (setup.scale.number(agents) for agents in (MANY, FEW))
    full, small = (asyncio.run(_directory(agents)) for agents in (many, few))
    yield lambda: Side(1 / _seconds(full, many)), lambda: Side(1 / _seconds(small, few))


@contextmanager
def bytes_each(setup: Setup) -> Iterator[Sides]:
    """Bytes that Python has allocated for each agent of such a directory, above one without agents,
    against 10,000 agents (of fewer, what it keeps of nodes is most): the target is that all grow by
    an order of 1.1."""
    many, some = (setup.scale.number(agents) for agents in (MANY, SOME))
    empty = _bytes(0)
    yield lambda: Side((_bytes(many) - empty) / many), lambda: Side((_bytes(some) - empty) / some)


REGIMES = (
    Regime(
        "cluster-look-ups",
        "1,000 agents",
        1 / TIME,
        look_ups,
        "higher",
        "look-ups/s",
        holds_on=ANYWHERE,
        differ=NOTHING_DECODED,
    ),
    Regime(
        "cluster-agent-bytes",
        "10,000 agents",
        BYTES,
        bytes_each,
        unit="bytes",
        runs=1,
        holds_on=ANYWHERE,
        differ=NOTHING_DECODED,
    ),
)
