"""What the protocol is given: how nodes reach each other, what time it is, what is kept, and the
agents of a node. One asyncio loop each; the adapters are Ray's and the simulation's.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

__all__ = ["Clock", "Host", "Journal", "Letter", "Record", "Transport"]

Record = Mapping[str, Any]
"""What msgpack packs: str, bytes, int, float, bool, None, lists and mappings of them."""


class Letter(NamedTuple):
    """A message from one agent to another; on the wire the list of these."""

    sender: str | None
    """Who sent it; None: nobody of the agents."""
    body: bytes
    """What it says: the hosts' own business."""
    asks: bool
    """Whether an answer is waited for ..."""
    seconds: float | None
    """... and for how long; None: without end."""
    ticket: str = ""
    """Of one that asks: what it is called where others wait for its answer."""

    def within(self, seconds: float | None) -> "Letter":
        """The same, with so many `seconds` left."""
        return self._replace(seconds=seconds)

    def sealed(self, body: bytes) -> "Letter":
        """The same, of which only hosts can read the `body`."""
        return self._replace(body=body)


class Transport(Protocol):
    """To other nodes, and to the directory."""

    async def call(
        self, to: str, method: str, record: Record, *, within: float | None = None
    ) -> Record:
        """What the node `to` ("directory" is one too) answers to `method` of `record`. Raises
        Unreachable where nobody knows whether it arrived, or `within` seconds are over (None: as
        long as the connection lasts), and the ClusterError it was answered with."""
        ...

    def stream(self, to: str, method: str, record: Record) -> AsyncIterator[Record]:
        """The items that `to` answers to `method` of `record`, in order, until it is done. Raises
        as `call` does, at any item. Closing it early ends what is done for it, or not: nobody
        relies on that."""
        ...


class Clock(Protocol):
    """A node's own: two of them agree on nothing but, within a bound, on how fast they go."""

    def now(self) -> float:
        """Seconds since some moment; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return so much later."""
        ...


class Journal(Protocol):
    """A small file of records that a node, or the directory, must not forget."""

    def load(self) -> list[Record]:
        """All records, in order."""
        ...

    async def append(self, record: Record) -> None:
        """Write one; synced on return. Raises OSError: then it may be there or not."""
        ...

    async def replace(self, records: Iterable[Record]) -> None:
        """These instead of all that was there when it was called, at once (a new file, renamed);
        what is appended since stands behind them. Synced on return. They may be looked at on
        another thread. Raises OSError: then it is the one or the other."""
        ...


class Host(Protocol):
    """The agents of one node: an AgentSystem and its store, or what a simulation has in its place.

    A ledger is a list of records, appended in order and never changed but by `set_aside`. An agent
    is stored here as owner or as replica alike; served is one that `begin` was called for.
    """

    async def stored(self) -> dict[str, int]:
        """The agents of the store, and how many ledger records each has."""
        ...

    async def begin(self, agent: str, options: Record) -> None:
        """Serve it: restored from what is stored, or new, with what `spawn` takes. Idempotent."""
        ...

    async def end(self, agent: str) -> None:
        """Serve it no more: what runs ends, what is told is stored, it leaves memory and stays on
        disk. Idempotent."""
        ...

    async def turn(
        self,
        agent: str,
        request: Record,
        tell: Callable[[Record], object] | None,
    ) -> Record:
        """Take one turn of `agent`, `request["id"]` in its ledger record, or give the answer of the
        one with that id that is in the ledger. Returns when the answer is there and its record is
        synced here; `tell` is called on the loop with items of it as they come: {"tokens", "text"}
        and what else the host has to say. What else stands in `request` (an ask, an observation, a
        rewind) is the host's own business, but for {"kind": "withdraw"}: no turn of that id is
        taken from then on, as if there were an empty one in the ledger."""
        ...

    async def cancel(self, agent: str) -> None:
        """End the turn of `agent`, which is served, that runs, with what it has said by now."""
        ...

    async def fork(self, agent: str, child: str) -> None:
        """Let `child`, of which nothing is here, begin with all records, and all KV, of `agent`,
        which is served; synced on return. It may be served then, or not. Where something of it is
        here, nothing is done."""
        ...

    async def records(self, agent: str, start: int) -> list[bytes]:
        """Its ledger records from the `start`-th on, packed (and sealed, where the store is)."""
        ...

    async def store(
        self, agent: str, start: int, records: list[bytes], of: str | None = None
    ) -> int:
        """Append those of `records` of `agent`, the first being the `start`-th, that are not here
        yet; synced on return: how many it has. `of`: whose records they are, if not its own.
        Raises LedgerGap (with how many it has) where `start` is beyond, OSError."""
        ...

    async def set_aside(self, agent: str, keep: int) -> None:
        """Take all records behind the first `keep`, and the KV, out of the way: into a folder
        where a person finds them. Synced on return."""
        ...

    def pieces(self, agent: str, have: list[str]) -> AsyncIterator[Record]:
        """Its KV, piece by piece in order, but for those whose digests are in `have`."""
        ...

    async def digests(self, agent: str) -> list[str]:
        """Of the pieces of KV that are stored here."""
        ...

    async def store_piece(self, agent: str, piece: Record) -> None:
        """Store one of `pieces`, which follows those that are here. What does not fit is left out:
        the agent is colder, never wrong. Raises OSError."""
        ...

    async def forget(self, agent: str) -> None:
        """Delete all of it but what was set aside. Idempotent. Raises OSError."""
        ...

    async def knows(self, agent: str, request: str) -> bool:
        """Whether its ledger has a record of the request with this id. Served or not."""
        ...

    async def cached(self, agent: str, request: str) -> bool:
        """Whether KV of the turn of the request with this id is on disk here: once it is, or never
        will be."""
        ...

    def load(self) -> Record:
        """{"bytes": KV held, "waiting": turns, "budget": bytes}, for placement, and "model": what
        whoever asks may have to know of that."""
        ...

    def check(self) -> None:
        """Raises EngineDied where no agent will be answered here any more: the node leaves."""
        ...

    def on_saved(self, listener: Callable[[str], Awaitable[None]]) -> None:
        """`listener(agent)` is called when an agent's KV was written, on the loop."""
        ...
