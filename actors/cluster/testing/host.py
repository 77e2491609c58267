"""A Host whose turns are made of names: what a ledger holds can be read off it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from hashlib import blake2b
from random import Random
from typing import Any

import msgpack  # type: ignore[import-untyped]

from kvactors.actors.cluster.protocol.errors import LedgerGap
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.testing.disk import Disk
from kvactors.actors.cluster.testing.process import Process

__all__ = ["ModelHost", "fits", "texts"]

TURN = (0.002, 0.08)
SAVED = 0.3


class ModelHost:
    """Ledgers on a simulated disk; those of served agents in memory besides, as an AgentSystem has
    them; it dies with its `process`, and `rng` draws how long turns take. That nobody writes below
    an agent that is served is asserted here."""

    def __init__(self, process: Process, disk: Disk, rng: Random) -> None:
        self._process, self._disk, self._rng = process, disk, rng
        self._ledgers: dict[str, list[bytes]] = disk.files.setdefault("ledgers", {})
        self._aside: list[bytes] = disk.files.setdefault("aside", [])
        self._pieces: dict[str, list[dict[str, Any]]] = disk.files.setdefault("pieces", {})
        self._served: dict[str, list[bytes]] = {}
        self._listeners: list[Callable[[str], Awaitable[None]]] = []

    async def stored(self) -> dict[str, int]:
        """See Host; so are the others."""
        await self._disk.read(self._process, "stored")
        return {agent: len(ledger) for agent, ledger in self._ledgers.items()}

    async def begin(self, agent: str, options: Record) -> None:
        """Read into memory."""
        await self._disk.read(self._process, "begin")
        self._served.setdefault(agent, list(self._ledgers.get(agent, ())))

    async def end(self, agent: str) -> None:
        """Out of memory."""
        await self._disk.read(self._process, "end")
        self._served.pop(agent, None)

    async def turn(
        self,
        agent: str,
        request: Record,
        on_tokens: Callable[[list[int], str], object] | None,
    ) -> Record:
        """`agent` answers `request` with where in the ledger it stands; `on_tokens` gets two."""
        memory = self._served[agent]
        known = [msgpack.unpackb(record)["id"] for record in memory]
        if request["id"] in known:
            return _answer(memory, known.index(request["id"]))
        await self._process.wait(self._rng.uniform(*TURN))
        if on_tokens is not None:
            on_tokens([1, 2], request["text"])
        await self._append(agent, msgpack.packb({"id": request["id"], "text": request["text"]}))
        if self._rng.random() < SAVED:
            self._save(agent)
        return _answer(memory, len(memory) - 1)

    async def _append(self, agent: str, record: bytes) -> None:
        memory = self._served[agent]
        ledger = self._ledgers.setdefault(agent, [])
        assert ledger == memory, f"{agent} is served from memory that is not its ledger"
        index = len(memory)
        try:
            await self._disk.write(self._process, "turn", lambda: _put(ledger, index, [record]))
        finally:
            memory[:] = ledger

    def _save(self, agent: str) -> None:
        ledger = self._ledgers[agent]
        pieces = self._pieces.setdefault(agent, [])
        pieces.append({"count": len(ledger), "digest": _digest(ledger)})
        for listener in self._listeners:
            self._process.start(_tell(listener, agent))

    async def knows(self, agent: str, request: str) -> bool:
        """By its id."""
        return any(msgpack.unpackb(r)["id"] == request for r in self._ledgers.get(agent, ()))

    async def records(self, agent: str, start: int) -> list[bytes]:
        """From the disk."""
        await self._disk.read(self._process, "records")
        return list(self._ledgers.get(agent, ())[start:])

    async def store(self, agent: str, start: int, records: list[bytes]) -> int:
        """Those of `records` of `agent`, from the `start`-th on, that are new."""
        ledger = self._ledgers.setdefault(agent, [])
        self._not_served(agent)
        if start > len(ledger):
            raise LedgerGap(agent=agent, have=len(ledger))
        await self._disk.write(self._process, "store", lambda: _put(ledger, start, records))
        self._not_served(agent)
        return len(ledger)

    async def set_aside(self, agent: str, keep: int) -> None:
        """They are kept, elsewhere."""
        self._not_served(agent)
        ledger = self._ledgers.setdefault(agent, [])

        def apply() -> None:
            self._aside.extend(ledger[keep:])
            del ledger[keep:]
            self._pieces.pop(agent, None)

        await self._disk.write(self._process, "set aside", apply)

    async def pieces(self, agent: str, have: list[str]) -> AsyncIterator[Record]:
        """One by one."""
        for piece in list(self._pieces.get(agent, ())):
            if piece["digest"] not in have:
                await self._disk.read(self._process, "piece")
                yield piece

    async def digests(self, agent: str) -> list[str]:
        """Of what is stored."""
        return [piece["digest"] for piece in self._pieces.get(agent, ())]

    async def store_piece(self, agent: str, piece: Record) -> None:
        """If the ledger has what it is of."""
        ledger = self._ledgers.get(agent, [])
        if fits(piece, ledger):
            pieces = self._pieces.setdefault(agent, [])
            await self._disk.write(self._process, "store piece", lambda: pieces.append(dict(piece)))

    async def forget(self, agent: str) -> None:
        """All but what was set aside."""
        self._not_served(agent)

        def apply() -> None:
            self._ledgers.pop(agent, None)
            self._pieces.pop(agent, None)

        await self._disk.write(self._process, "forget", apply)

    def load(self) -> Record:
        """By the number of agents served."""
        return {"bytes": 2**20 * len(self._served), "waiting": 0, "budget": 2**30}

    def on_saved(self, listener: Callable[[str], Awaitable[None]]) -> None:
        """One more."""
        self._listeners.append(listener)

    def _not_served(self, agent: str) -> None:
        assert agent not in self._served, f"{agent} is written below while it is served"


def texts(ledger: list[bytes]) -> list[str]:
    """What was asked, in order."""
    return [msgpack.unpackb(record)["text"] for record in ledger]


def fits(piece: Record, ledger: list[bytes]) -> bool:
    """Whether a piece of KV is of the first turns of a ledger."""
    return bool(_digest(ledger[: piece["count"]]) == piece["digest"])


def _put(ledger: list[bytes], start: int, records: list[bytes]) -> None:
    # What is there already is left as it is.
    ledger.extend(records[max(0, len(ledger) - start) :])


def _answer(memory: list[bytes], index: int) -> dict[str, Any]:
    return {"index": index, "text": msgpack.unpackb(memory[index])["text"]}


def _digest(records: list[bytes]) -> str:
    return blake2b(b"".join(records), digest_size=8).hexdigest()


async def _tell(listener: Callable[[str], Awaitable[None]], agent: str) -> None:
    await listener(agent)
