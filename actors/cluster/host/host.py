"""SystemHost: the agents of one AgentSystem and its store, for the protocol of a cluster.

An asyncio loop outside, the system's threads inside: what waits for an agent waits for a future of
its own, what waits for a thread (spawning, leaving memory) does so on one of asyncio's. Records
and pieces are read and written on the persistence thread, behind the saves that wait there.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from pykka import ActorDeadError

from kvactors.actors.cluster.host.answers import reply_record, rewound_record
from kvactors.actors.cluster.host.requests import read_request, read_spawn_options
from kvactors.actors.cluster.host.saved import SavedKV, has_kv
from kvactors.actors.cluster.host.turns import ServedTurns, Tell
from kvactors.actors.cluster.protocol.behaviours import Behaviours, NoBehaviours
from kvactors.actors.cluster.protocol.errors import LedgerGap
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.errors import AgentExists, AgentNotStored
from kvactors.actors.runtime.supervision import Supervision
from kvactors.actors.system.system import AgentSystem
from kvactors.actors.turns.messages_store import WithStore
from kvactors.core.errors import (
    EngineDied,
    InvalidConfig,
    SystemPromptMismatch,
    SystemStopped,
)
from kvactors.persistence.errors import RecordGap
from kvactors.persistence.store.piece_copies import PIECE_BYTES
from kvactors.persistence.store.store import Store

__all__ = ["SystemHost"]


class SystemHost:
    """A Host (`kvactors.actors.cluster.protocol.interfaces`) over a `system` that runs, with a
    store; `behaviours` are those of its agents. All methods belong to one asyncio loop.
    `piece_bytes`: of KV in one piece, unless a segment has more. What an agent's own methods raise
    passes.

    Raises InvalidConfig for a system without a store, or a deterministic one.
    """

    def __init__(
        self,
        system: AgentSystem,
        behaviours: Behaviours | None = None,
        *,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._piece_bytes = piece_bytes
        self.behaviours = behaviours or NoBehaviours()
        self._system = system
        self._lifecycle = system.parts.lifecycle
        self._saved = SavedKV()
        self._turns = ServedTurns(system, self._saved)
        # What each is to begin with, while it is served.
        self._begun: dict[str, tuple[str | None, Supervision | None]] = {}
        if self._lifecycle.open_store is None:
            raise InvalidConfig(
                "a node of a cluster keeps its agents in a store, and this system has store=False"
            )
        if self._lifecycle.deterministic:
            raise InvalidConfig("a deterministic system goes on only while its one thread waits")

    # -- agents that are served ----------------------------------------------------------

    async def begin(self, agent: str, options: Record) -> None:
        """Serve it, as it is stored, or new, with `spawn_options`; its behaviour begins. A stored
        one has the system prompt that its ledger says."""
        given = read_spawn_options(options)
        behaviour = given.pop("behaviour", None), given.pop("supervision", None)
        if self._system.find(agent) is None:
            await _spawn(self._system, agent, given)
        self._begun[agent] = behaviour
        await self.behaviours.begin(agent, *behaviour)

    async def end(self, agent: str) -> None:
        """It leaves memory when its turns so far have ended and are on disk, and its behaviour has.
        Raises SaveFailed; then it is served on."""
        await self.behaviours.end(agent)
        try:
            await asyncio.to_thread(self._system.deactivate, agent)
        except BaseException:
            await self.behaviours.begin(agent, *self._begun.get(agent, (None, None)))
            raise
        self._begun.pop(agent, None)

    async def turn(self, agent: str, request: Record, tell: Tell | None) -> Record:
        """Let `agent` take a turn, a `request` of those in `requests.py`, or withdraw one; the
        `reply_record` (of a rewind the `rewound_record`) once it is in the ledger here. `tell` is
        called with items of it as they come. A caller that is cancelled leaves it running: it is
        taken, and whoever asks again has its answer."""
        kind, given = read_request(request)
        if kind == "rewind":
            rewound = await self._turns.rewound(agent, given)
            await rewound.durable
            return rewound_record(rewound)
        if kind in ("ask", "turn") and tell is not None:
            reply = await self._turns.streamed(agent, kind, given, tell)
        else:
            reply = await self._turns.asked(agent, kind, given)
        await reply.durable
        return reply_record(reply)

    async def cancel(self, agent: str) -> None:
        """End the turn of `agent` that runs at its next step: its answer is what was decoded."""
        self._turns.cancel(agent)

    async def fork(self, agent: str, child: str) -> None:
        """Let `child`, a new one, be served with all that `agent`, which is served, remembers.
        One whose ledger has been begun is left as it is."""
        with suppress(AgentExists):
            await asyncio.to_thread(self._system.spawn, child, from_=agent)

    # -- what is stored ------------------------------------------------------------------

    async def stored(self) -> dict[str, int]:
        """Agents whose ledgers can be read, and how many records each has."""
        found: dict[str, int] = await self._with_store(lambda store: store.records.counts())
        return found

    async def records(self, agent: str, start: int) -> list[bytes]:
        """Copies of its records from the `start`-th on: the same record has the same bytes on every
        node with the same key. Raises SaveFailed if the disk refuses some."""
        work = partial(_read_records, agent, start)
        found: list[bytes] = await self._with_store(work, agent)
        return found

    async def knows(self, agent: str, request: str) -> bool:
        """Whether its ledger has a record of this request."""
        found: bool = await self._with_store(partial(_knows, agent, request), agent)
        return found

    async def cached(self, agent: str, request: str) -> bool:
        """Whether KV of the turn of this request is on disk: once it is, or never will be. Raises
        SaveFailed."""
        found: bool | None = await self._saved.cached(agent, request)
        if found is None:
            work = partial(has_kv, agent, request, self._system.info.fingerprint)
            found = await self._with_store(work, agent)
        return found

    async def store(
        self, agent: str, start: int, records: list[bytes], of: str | None = None
    ) -> int:
        """Append copies of `records` (of the agent `of`, else its own) to the ledger of `agent`,
        which is not served: those from the `start`-th on that it has not. Raises LedgerGap,
        RecordsPart, ImportRejected, OSError."""
        self._turns.require_none(agent)
        try:
            work = partial(_append_records, agent, start, records, of)
            count: int = await self._with_store(work)
        except RecordGap as gap:
            raise LedgerGap(agent=agent, have=gap.have) from gap
        return count

    async def set_aside(self, agent: str, keep: int) -> None:
        """Move all records behind the first `keep` out of the way, and delete the KV. Raises
        OSError."""
        self._turns.require_none(agent)
        await self._with_store(lambda store: store.records.set_aside(agent, keep))

    async def pieces(self, agent: str, have: list[str]) -> AsyncIterator[Record]:
        """Its KV, piece by piece; what is written meanwhile comes too."""
        known = set(have)
        while True:
            # By value: the set grows while the other thread may still look at it.
            work = partial(_read_piece, agent, frozenset(known), self._piece_bytes)
            piece = await self._with_store(work, agent)
            if piece is None:
                return
            known |= set(piece.pop("names"))
            yield piece

    async def digests(self, agent: str) -> list[str]:
        """Names of the segments that are stored here: they name content."""
        found: list[str] = await self._with_store(lambda store: store.pieces.names(agent))
        return found

    async def store_piece(self, agent: str, piece: Record) -> None:
        """Store one of `pieces`, if it fits; of an agent that is not served. Where the disk is full
        those that are served lose their KV last. Raises OSError."""
        self._turns.require_none(agent)
        served = self._turns.ids
        await self._with_store(lambda store: store.pieces.add(agent, piece, served))

    async def forget(self, agent: str) -> None:
        """Delete it from memory and disk. What was set aside of it stays."""
        await self.behaviours.end(agent)
        with suppress(AgentNotStored):
            await asyncio.to_thread(self._system.forget, agent)

    # -- of the node ---------------------------------------------------------------------

    def load(self) -> Record:
        """Bytes of KV in memory, turns that wait or run, bytes that there may be, the model."""
        info = self._system.info
        return {
            "bytes": self._lifecycle.vitals.hot_bytes,
            "waiting": len(self._lifecycle.outstanding.turns()),
            "budget": info.memory_budget,
            "model": {
                "name": info.name,
                "tokenizer": info.tokenizer_id,
                "vocabulary": info.spec.vocab_size,
                "context": info.spec.context,
            },
        }

    def check(self) -> None:
        """Raises EngineDied where the engine has."""
        vitals = self._lifecycle.vitals
        if vitals.state == "dead":
            raise EngineDied(vitals.error)

    def on_saved(self, listener: Callable[[str], Awaitable[None]]) -> None:
        """Call when the KV of a turn that was taken here is on disk."""
        self._saved.listeners.append(listener)

    async def _with_store(self, work: Callable[[Store], Any], agent: str = "") -> Any:
        """What `work` returns, on the persistence thread; with all turns of `agent` written."""
        self._lifecycle.require_running()
        try:
            future = self._lifecycle.persistence.ask(WithStore(work, agent), block=False)
            return await future
        except ActorDeadError as error:
            raise SystemStopped("the system is stopped") from error


async def _spawn(system: AgentSystem, agent: str, given: dict[str, Any]) -> None:
    try:
        await asyncio.to_thread(system.spawn, agent, **given)
    except SystemPromptMismatch:
        del given["system_prompt"]
        await asyncio.to_thread(system.spawn, agent, **given)


def _read_records(agent: str, start: int, store: Store) -> list[bytes]:
    return store.records.read(agent, start)


def _append_records(
    agent: str, start: int, records: list[bytes], of: str | None, store: Store
) -> int:
    return store.records.append(agent, start, records, of)


def _knows(agent: str, request: str, store: Store) -> bool:
    return any(record.get("request") == request for record in store.read_ledger(agent) or ())


def _read_piece(agent: str, have: frozenset[str], most: int, store: Store) -> dict[str, Any] | None:
    piece = store.pieces.read(agent, have, most)
    return piece and {**piece, "names": store.pieces.names_of(piece)}
