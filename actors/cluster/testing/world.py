"""The simulated cluster as a whole: machines that are started, killed, paused and healed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgpack  # type: ignore[import-untyped]

from kvactors.actors.cluster.protocol.client import Client
from kvactors.actors.cluster.protocol.directory.server import Directory
from kvactors.actors.cluster.protocol.errors import ClusterError
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.node.server import Node
from kvactors.actors.cluster.protocol.outbox import Permit, anybody
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.actors.cluster.testing.machines.behaviours import DrawnBehaviours
from kvactors.actors.cluster.testing.machines.disk import Disk, SimJournal
from kvactors.actors.cluster.testing.machines.host import ModelHost, texts
from kvactors.actors.cluster.testing.machines.letters import LetterOracle
from kvactors.actors.cluster.testing.machines.network import Network, SimTransport
from kvactors.actors.cluster.testing.machines.posting import Post
from kvactors.actors.cluster.testing.machines.process import Process, SimClock, new_loop
from kvactors.actors.cluster.testing.oracle import Oracle
from kvactors.actors.cluster.testing.steps import Steps

__all__ = ["DIRECTORY", "World"]

DIRECTORY = "directory"
PATIENCES = (4.0, 20.0)
"""Seconds for which a message looks for its owner."""


@dataclass(slots=True)
class Machine:
    """A name, its disk, and the process that runs there now."""

    disk: Disk
    process: Process
    rate: float
    server: Any = None
    down: list[float] = field(default_factory=list)


class World:
    """A directory and so many `nodes` with `settings`; everything is drawn from `seed`."""

    def __init__(self, seed: int, nodes: int, settings: Settings) -> None:
        self.rng = Random(seed)
        self.loop = new_loop()
        self.settings = settings
        self.oracle = Oracle()
        # Apart from `rng`: messages change what happens to turns as little as they can.
        self.mail_rng = Random(f"{seed} mail")
        self.agents: list[str] = []
        self.letters = LetterOracle(self.oracle.broken, self.loop.time, self._owner, settings.lease)
        self.steps = Steps(self.say)
        self.network = Network(self.rng, self.step)
        self.nodes = [f"n{index}" for index in range(nodes)]
        self._names, self._lost = nodes - 1, list[str]()
        self.machines: dict[str, Machine] = {}
        self.log: list[str] = []
        for name in [DIRECTORY, *self.nodes]:
            self._add(name)

    def say(self, what: str) -> None:
        """For whoever looks at one seed."""
        self.log.append(f"{self.loop.time():9.4f} {what}")

    def step(self, process: Process, what: str) -> None:
        """A process is at a step: an armed fault may strike there, unless it is a client's."""
        if process.name in self.machines:
            self.steps.at(process, what)

    def start(self, name: str) -> None:
        """The machine's process again, if it is dead; no more than that where it was lost."""
        machine = self.machines.get(name)
        if machine is not None and not machine.process.alive:
            machine.process = Process(name, self.loop)
            self._boot(name)
            self.say(f"start {name}")

    def kill(self, name: str) -> None:
        """Its process is gone; so are the others of a machine that was not lost before."""
        if name in self.machines:
            self.say(f"kill {name}")
            self.machines[name].process.kill()

    def pause(self, name: str) -> None:
        """It stands still."""
        if name in self.machines:
            self.say(f"pause {name}")
            self.machines[name].process.pause()

    def resume(self, name: str) -> None:
        """It goes on."""
        if name in self.machines and self.machines[name].process.paused:
            self.say(f"resume {name}")
            self.machines[name].process.resume(self.rng)

    def lose(self, name: str) -> None:
        """The machine of a node is gone for good, with its disk; another one comes in its place."""
        machine = self.machines.pop(name)
        machine.process.kill()
        self._lost += [
            text for ledger in machine.disk.files["ledgers"].values() for text in texts(ledger)
        ]
        self._lost += texts(machine.disk.files["aside"])
        self._names += 1
        new = f"n{self._names}"
        self.say(f"lose {name} with its disk; {new} comes")
        self.nodes[self.nodes.index(name)] = new
        self._add(new)

    def heal(self) -> None:
        """No faults any more."""
        self.say("heal")
        self.steps.armed.clear()
        self.network.heal()
        for name, machine in self.machines.items():
            machine.disk.heal()
            self.resume(name)
            self.start(name)

    def client(self, name: str) -> Client:
        """Somebody who asks."""
        process = Process(name, self.loop)
        transport = SimTransport(self.network, process)
        return Client(transport, SimClock(process, _rate(self), 0.0), self.settings)

    def post(self, name: str) -> Post:
        """Somebody outside who sends messages."""
        process = Process(name, self.loop)
        return self._post(process, SimClock(process, _rate(self), 0.0), anybody)

    def ledgers(self, agent: str) -> dict[str, list[str]]:
        """What each node's disk has of it."""
        found = {}
        for name in self.nodes:
            held = self.machines[name].disk.files["ledgers"]
            if agent in held:
                found[name] = texts(held[agent])
        return found

    def aside(self) -> list[str]:
        """What was set aside anywhere, or was on a disk that is lost."""
        disks = [self.machines[name].disk for name in self.nodes]
        return [*self._lost, *(text for disk in disks for text in texts(disk.files["aside"]))]

    def close(self) -> None:
        """All of it ends."""
        for machine in self.machines.values():
            machine.process.kill()
        # Who is cancelled tells those that wait for it, and they others.
        for _ in range(9):
            self.loop.run_until_complete(_cancel_all())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def _add(self, name: str) -> None:
        disk = Disk(self.rng, self.step)
        self.machines[name] = Machine(disk, Process(name, self.loop), _rate(self))
        self._boot(name)

    def _boot(self, name: str) -> None:
        machine = self.machines[name]
        process = machine.process
        transport = SimTransport(self.network, process)
        clock = SimClock(process, machine.rate, self.rng.uniform(0, 1000))
        journal = SimJournal(process, machine.disk)
        if name == DIRECTORY:
            server: Any = Directory(transport, clock, journal, self.settings)
            self.network.serve(process, _watched(self, name, server))
        else:
            post = self._post(process, clock, lambda *said: server.speaking.permit(*said))
            behaviours = DrawnBehaviours(process, post, self.letters, self.agents, self.mail_rng)
            host = ModelHost(process, machine.disk, self.rng, behaviours)
            server = Node(
                name,
                transport,
                clock,
                journal,
                host,
                settings=self.settings,
                behaviours=behaviours,
            )
            self.network.serve(
                process, _watched(self, name, server), _heard(self.letters, name, server)
            )
        machine.server = server
        process.start(self._run(name, process, server))

    def _post(self, process: Process, clock: SimClock, permit: Permit) -> Post:
        return Post(
            process,
            SimTransport(self.network, process),
            clock,
            self.settings,
            self.letters,
            seconds=self.mail_rng.choice(PATIENCES),
            permit=permit,
        )

    def _owner(self, agent: str) -> str:
        """Where the directory has put it."""
        place = self.machines[DIRECTORY].server.registry.places.get(agent)
        return "nowhere" if place is None else str(place.node)

    async def _run(self, name: str, process: Process, server: Any) -> None:
        try:
            await server.run()
        except OSError:
            # Its disk failed under it: whoever runs it starts it again.
            process.loop.call_later(0.3, self.start, name)
            self.kill(name)
        except Exception as error:
            self.oracle.broken.append(f"{name} ended with {error!r}")


def _watched(world: World, name: str, server: Any) -> Callable[[str, Record], Awaitable[Record]]:
    """The `handle` of `server`, called `name` in `world`: what is neither a refusal nor a disk's
    fault is a bug."""

    async def handle(method: str, record: Record) -> Record:
        try:
            answer = dict(await server.handle(method, record))
            if method in ("renew", "join"):
                world.letters.renewed(record["node"])
            return answer
        except (ClusterError, OSError):
            raise
        except Exception as error:
            world.oracle.broken.append(f"{name} met {error!r} in {method}")
            raise

    return handle


def _heard(
    letters: LetterOracle, name: str, server: Any
) -> Callable[[str, Record], AsyncIterator[Record]]:
    """The `stream` of the node `name`: the oracle of `letters` sees each answer that leaves."""

    async def stream(method: str, record: Record) -> AsyncIterator[Record]:
        async for item in server.stream(method, record):
            for _, body in item.get("answers", ()):
                # None: the behaviour has ended with it.
                if (key := msgpack.unpackb(body)) is not None:
                    letters.answers(key, name)
            yield item

    return stream


async def _cancel_all() -> None:
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


def _rate(world: World) -> float:
    """Of a clock: as far from the true one as it may be, or less."""
    skew = world.settings.skew
    return world.rng.choice([1 - skew, 1 + skew, world.rng.uniform(1 - skew, 1 + skew)])
