"""A Host whose turns are made of names: what a ledger holds can be read off it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from hashlib import blake2b
from random import Random
from typing import Any

import msgpack  # type: ignore[import-untyped]

from kvactors.actors.cluster.protocol.behaviours import Behaviours, NoBehaviours
from kvactors.actors.cluster.protocol.errors import LedgerGap
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.testing.machines.disk import Disk
from kvactors.actors.cluster.testing.machines.process import Process

__all__ = ["ModelHost", "fits", "remembered", "texts", "think", "withdrawn"]

TURN = (0.002, 0.08)
# A turn looks so often whether it shall end.
LOOKS = 4
SAVED = 0.3


class ModelHost:
    """Ledgers on a simulated disk; those of served agents in memory besides, as an AgentSystem has
    them, with their `behaviours`; it dies with its `process`, and `rng` draws how long turns take.
    That nobody writes below an agent that is served is asserted here."""

    def __init__(
        self, process: Process, disk: Disk, rng: Random, behaviours: Behaviours | None = None
    ) -> None:
        self._process, self._disk, self._rng = process, disk, rng
        self._behaviours = behaviours or NoBehaviours()
        self._ledgers: dict[str, list[bytes]] = disk.files.setdefault("ledgers", {})
        self._aside: list[bytes] = disk.files.setdefault("aside", [])
        self._pieces: dict[str, list[dict[str, Any]]] = disk.files.setdefault("pieces", {})
        self._served: dict[str, list[bytes]] = {}
        self._cut: set[str] = set()
        self._listeners: list[Callable[[str], Awaitable[None]]] = []

    async def stored(self) -> dict[str, int]:
        """See Host; so are the others."""
        await self._disk.read(self._process, "stored")
        return {agent: len(ledger) for agent, ledger in self._ledgers.items()}

    async def begin(self, agent: str, options: Record) -> None:
        """Read into memory."""
        await self._disk.read(self._process, "begin")
        self._served.setdefault(agent, list(self._ledgers.get(agent, ())))
        await self._behaviours.begin(agent, None, None)

    async def end(self, agent: str) -> None:
        """Out of memory."""
        await self._behaviours.end(agent)
        await self._disk.read(self._process, "end")
        self._served.pop(agent, None)

    async def turn(
        self,
        agent: str,
        request: Record,
        tell: Callable[[Record], object] | None,
    ) -> Record:
        """`agent` answers `request` with where in the ledger it stands, and what is remembered
        there; `tell` gets two tokens."""
        memory = self._served[agent]
        known = [msgpack.unpackb(record)["id"] for record in memory]
        if request["id"] in known:
            return _answer(memory, known.index(request["id"]))
        if request.get("kind") == "withdraw":
            request = {"id": request["id"], "text": withdrawn(request["id"]), "rewinds": 0}
        else:
            await think(self._process, agent, self._cut, self._rng.uniform(*TURN))
        if tell is not None:
            tell({"tokens": [1, 2], "text": request["text"]})
        await self._append(agent, msgpack.packb(dict(request)))
        if self._rng.random() < SAVED:
            _save(self._ledgers[agent], self._pieces.setdefault(agent, []))
            for listener in self._listeners:
                self._process.start(_tell(listener, agent))
        return _answer(memory, len(memory) - 1)

    async def cancel(self, agent: str) -> None:
        """It looks before it thinks on."""
        self._cut.add(agent)

    async def _append(self, agent: str, record: bytes) -> None:
        memory = self._served[agent]
        ledger = self._ledgers.setdefault(agent, [])
        assert ledger == memory, f"{agent} is served from memory that is not its ledger"
        index = len(memory)
        try:
            await self._disk.write(self._process, "turn", lambda: _put(ledger, index, [record]))
        finally:
            memory[:] = ledger

    async def knows(self, agent: str, request: str) -> bool:
        """By its id."""
        return any(msgpack.unpackb(r)["id"] == request for r in self._ledgers.get(agent, ()))

    async def cached(self, agent: str, request: str) -> bool:
        """Some turns never are."""
        await self._disk.read(self._process, "cached")
        names = [msgpack.unpackb(record)["id"] for record in self._ledgers.get(agent, ())]
        saved = max((piece["count"] for piece in self._pieces.get(agent, ())), default=0)
        return request in names[:saved]

    async def records(self, agent: str, start: int) -> list[bytes]:
        """From the disk."""
        await self._disk.read(self._process, "records")
        return list(self._ledgers.get(agent, ())[start:])

    async def fork(self, agent: str, child: str) -> None:
        """All that `agent` remembers."""
        records, pieces = list(self._served[agent]), list(self._pieces.get(agent, ()))
        if child in self._served or self._ledgers.get(child):
            return

        def apply() -> None:
            _put(self._ledgers.setdefault(child, []), 0, records)
            self._pieces[child] = pieces

        await self._disk.write(self._process, "store fork", apply)

    async def store(
        self, agent: str, start: int, records: list[bytes], of: str | None = None
    ) -> int:
        """Those of `records` of `agent`, from the `start`-th on, that are new; whoever they are
        `of`."""
        ledger = self._ledgers.setdefault(agent, [])
        _not_served(self._served, agent)
        if start > len(ledger):
            raise LedgerGap(agent=agent, have=len(ledger))
        await self._disk.write(self._process, "store", lambda: _put(ledger, start, records))
        _not_served(self._served, agent)
        return len(ledger)

    async def set_aside(self, agent: str, keep: int) -> None:
        """They are kept, elsewhere."""
        _not_served(self._served, agent)
        ledger = self._ledgers.setdefault(agent, [])

        def apply() -> None:
            self._aside.extend(ledger[keep:])
            del ledger[keep:]
            self._pieces.pop(agent, None)

        await self._disk.write(self._process, "set aside", apply)

    async def pieces(self, agent: str, have: list[str]) -> AsyncIterator[Record]:
        """One by one; what is saved meanwhile comes too."""
        known = set(have)
        while new := [p for p in self._pieces.get(agent, ()) if p["digest"] not in known]:
            await self._disk.read(self._process, "piece")
            known.add(new[0]["digest"])
            yield new[0]

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
        _not_served(self._served, agent)

        def apply() -> None:
            self._ledgers.pop(agent, None)
            self._pieces.pop(agent, None)

        await self._disk.write(self._process, "forget", apply)

    def load(self) -> Record:
        """By the number of agents served."""
        return {"bytes": 2**20 * len(self._served), "waiting": 0, "budget": 2**30}

    def check(self) -> None:
        """It lives as long as its process."""

    def on_saved(self, listener: Callable[[str], Awaitable[None]]) -> None:
        """One more."""
        self._listeners.append(listener)


async def think(process: Process, agent: str, cut: set[str], seconds: float) -> None:
    """A turn of `agent` in `process`, which takes so many `seconds`, unless it is among those that
    are `cut`."""
    cut.discard(agent)
    for _ in range(LOOKS):
        if agent not in cut:
            await process.wait(seconds / LOOKS)


def texts(ledger: list[bytes]) -> list[str]:
    """What was asked, in order."""
    return [msgpack.unpackb(record)["text"] for record in ledger]


def fits(piece: Record, ledger: list[bytes]) -> bool:
    """Whether a piece of KV is of the first turns of a ledger."""
    return bool(_digest(ledger[: piece["count"]]) == piece["digest"])


def withdrawn(request: str) -> str:
    """What stands in the ledger for a request of this id that is never taken."""
    return f"no {request}"


def remembered(ledger: list[bytes]) -> list[str]:
    """What was asked and is not rewound, in order."""
    found: list[str] = []
    for record in map(msgpack.unpackb, ledger):
        if "rewinds" in record:
            del found[max(0, len(found) - record["rewinds"]) :]
        else:
            found.append(record["text"])
    return found


def _not_served(served: dict[str, list[bytes]], agent: str) -> None:
    assert agent not in served, f"{agent} is written below while it is served"


def _save(ledger: list[bytes], pieces: list[dict[str, Any]]) -> None:
    pieces.append({"count": len(ledger), "digest": _digest(ledger)})


def _put(ledger: list[bytes], start: int, records: list[bytes]) -> None:
    # What is there already is left as it is.
    ledger.extend(records[max(0, len(ledger) - start) :])


def _answer(memory: list[bytes], index: int) -> dict[str, Any]:
    text = msgpack.unpackb(memory[index])["text"]
    return {"index": index, "text": text, "remembers": remembered(memory[: index + 1])}


def _digest(records: list[bytes]) -> str:
    return blake2b(b"".join(records), digest_size=8).hexdigest()


async def _tell(listener: Callable[[str], Awaitable[None]], agent: str) -> None:
    await listener(agent)
