"""Parts of the protocol on one machine, whose disk outlives them."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine
from random import Random
from typing import Any

import msgpack  # type: ignore[import-untyped]

from kvactors.actors.cluster.protocol.directory.server import Directory
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.locks import Locks
from kvactors.actors.cluster.protocol.node.notes import Notes
from kvactors.actors.cluster.protocol.node.replica import Replica, digests
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.actors.cluster.testing.machines.disk import Disk, SimJournal
from kvactors.actors.cluster.testing.machines.host import ModelHost, texts
from kvactors.actors.cluster.testing.machines.network import Network, SimTransport
from kvactors.actors.cluster.testing.machines.process import Process, SimClock, new_loop

__all__ = ["SETTINGS", "Answering", "Machine", "record"]

SETTINGS = Settings(lease=2.0)


def record(text: str) -> bytes:
    return bytes(msgpack.packb({"id": f"r-{text}", "text": text}))


class Answering(ABC):
    """A transport to others that a test makes up."""

    @abstractmethod
    async def answer(self, method: str, asked: Record) -> Record:
        """Of whomever it is asked."""

    async def call(
        self, to: str, method: str, record: Record, *, within: float | None = None
    ) -> Record:
        return await self.answer(method, record)

    def stream(self, to: str, method: str, record: Record) -> AsyncIterator[Record]:
        raise NotImplementedError


class Machine:
    """One machine without a network: its disk outlives `restart`."""

    def __init__(self) -> None:
        self.loop, self.rng = new_loop(), Random(1)
        self.disk = Disk(self.rng, lambda *_: None)
        self._start()

    def restart(self) -> None:
        self.process.kill()
        self._start()

    def _start(self) -> None:
        self.process = Process("n1", self.loop)
        self.clock = SimClock(self.process, 1.0, 0.0)
        self.journal = SimJournal(self.process, self.disk)
        self.notes = Notes(SimJournal(self.process, self.disk, "notes"))
        self.host = ModelHost(self.process, self.disk, self.rng)
        self.replica = Replica(self.host, self.notes, Locks(), self.host.end)
        transport = SimTransport(Network(self.rng, lambda *_: None), self.process)
        self.directory = Directory(transport, self.clock, self.journal, SETTINGS)

    def does(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(self.process.start(work))

    def align(self, epoch: int, ledger: list[bytes]) -> int:
        asked = {"agent": "alice", "epoch": epoch, "digests": digests(ledger)}
        return int(self.does(self.replica.align(asked))["have"])

    def replicate(self, epoch: int, start: int, *records: bytes) -> int:
        asked = {"agent": "alice", "epoch": epoch, "start": start, "records": list(records)}
        return int(self.does(self.replica.replicate(asked))["have"])

    def ask(self, method: str, **asked: object) -> Record:
        return dict(self.does(self.directory.handle(method, asked)))

    def ledger(self) -> list[str]:
        return texts(self.disk.files["ledgers"].get("alice", []))

    def joins(self, *nodes: str, told: bool = True) -> None:
        for node in nodes:
            self.ask("join", node=node, incarnation=1, disk="d")
            if told:
                self.ask("told", node=node, incarnation=1)

    def spawns(self) -> Record:
        return self.ask("spawn", agent="alice", group=None, options={})

    def all_fall_silent(self, *, but: str | None = None) -> None:
        """Two leases go by; then the directory has looked."""
        rounds = self.process.start(self.directory.run())
        for _ in range(8):
            if but is not None:
                self.ask("renew", node=but, incarnation=1, load={"bytes": 0, "waiting": 0})
            self.does(self.process.wait(SETTINGS.lease / 4))
        rounds.cancel()
