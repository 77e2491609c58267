"""Every agent there is, spawned or only stored, and where its memory is; and how much that is in
all. Any thread."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from kvactors.actors.agents.actor import AgentActor
from kvactors.actors.agents.host import AgentHost
from kvactors.actors.system.lifecycle import Lifecycle
from kvactors.actors.system.registry import AgentRegistry
from kvactors.actors.turns.checks import check_id
from kvactors.actors.turns.messages_gpu import ReadStats
from kvactors.actors.turns.messages_store import CountStored, WithStore
from kvactors.core.conversation.records import TOKEN_BYTES
from kvactors.core.engine.status import HeldAgent
from kvactors.core.errors import KvactorsError
from kvactors.persistence.store.listing import Glance, StoreCounts
from kvactors.persistence.store.store import Store

__all__ = ["AgentRoster", "AgentState"]

# Ledgers that are read at a time: saves go in between.
AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class AgentState:
    """An agent and where its memory is. Sizes in bytes.

    `tier`: "active" while a turn runs, "hot" with KV in memory, "warm" with KV on disk, else
    "cold". `turns` counts the entries of its transcript, and `tokens` theirs; of those KV is in
    memory for the first `memory_tokens` and on disk for the first `disk_tokens`. What agents share
    is counted for each. `last_used`: seconds since 1970, None where nothing is stored. `problem`:
    why its ledger cannot be read.
    """

    agent_id: str
    tier: Literal["active", "hot", "warm", "cold"]
    turns: int
    tokens: int
    memory_tokens: int
    memory_bytes: int
    disk_tokens: int
    disk_bytes: int
    last_used: float | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class _Memory:
    """What an agent remembers."""

    agent_id: str
    turns: int = 0
    tokens: int = 0
    problem: str | None = None


class AgentRoster:
    """Lists `agents` of one system and those of its store; `lifecycle` has the actors, `host` the
    model."""

    def __init__(self, lifecycle: Lifecycle, host: AgentHost, agents: AgentRegistry) -> None:
        self._lifecycle = lifecycle
        self._host = host
        self._agents = agents
        # By folder: the ledger's length when it was read, and what it said; -1: to be read again.
        self._read: dict[str, tuple[int, _Memory]] = {}

    def stats(self) -> dict[str, int]:
        """Counts of agents, tokens and bytes: active, hot, warm and cold, and of the engine's work.
        Waits for the step, and for the group of saves, that run; the first call lists the store.
        Raises SystemStopped, EngineDied."""
        lifecycle = self._lifecycle
        lifecycle.require_running()
        engine, in_memory = lifecycle.ask(lifecycle.gpu, ReadStats())
        counts = {
            "agents": len(self._agents),
            "outstanding_turns": len(lifecycle.outstanding.turns()),
        }
        return {**counts, **engine, **self._counts_stored(in_memory)}

    def _counts_stored(self, in_memory: frozenset[str]) -> dict[str, int]:
        """What the store holds; without one, every agent that is not in memory is cold."""
        lifecycle = self._lifecycle
        if lifecycle.persistence is None:
            known = {actor.agent_id for actor in self._agents.actors() if actor.transcript.turns}
            return asdict(StoreCounts(cold_agents=len(known - in_memory)))
        message = CountStored(self._host.info.fingerprint, in_memory)
        found: dict[str, int] = lifecycle.ask(lifecycle.persistence, message)
        return found

    def known_agents(self, *agent_ids: str) -> list[AgentState]:
        """Every agent, spawned or only stored, or those of `agent_ids` that there are, in the order
        of their ids.

        A ledger is read when it is new or has grown, else only its length. Waits for the step and
        for the group of saves that run. Raises InvalidAgentId, SystemStopped, EngineDied, OSError.
        """
        for agent_id in agent_ids:
            check_id(agent_id)
        self._lifecycle.require_running()
        gpu, asked = self._lifecycle.gpu, ReadStats(held=agent_ids)
        held: Mapping[str, HeldAgent] = self._lifecycle.ask(gpu, asked)
        glances = self._glances(agent_ids)
        if not agent_ids:
            # Those of others are forgotten.
            there = {glance.folder for glance in glances}
            self._read = {folder: read for folder, read in self._read.items() if folder in there}
        known = dict[str, _Memory]()
        stored = dict[str, Glance]()
        for glance, memory in zip(glances, self._memories(glances), strict=True):
            # KV alone, of no ledger that it saw, is of an agent that half arrived.
            if glance.ledger_bytes or memory.problem:
                known[memory.agent_id], stored[memory.agent_id] = memory, glance
        for actor in self._actors(agent_ids):
            known[actor.agent_id] = _remembered(actor)
        return [_state(known[name], held.get(name), stored.get(name)) for name in sorted(known)]

    def _actors(self, agent_ids: tuple[str, ...]) -> list[AgentActor]:
        if not agent_ids:
            return self._agents.actors()
        return [actor for actor in map(self._agents.actor, agent_ids) if actor is not None]

    def _glances(self, agent_ids: tuple[str, ...]) -> list[Glance]:
        fingerprint = self._host.info.fingerprint
        return self._with_store(lambda store: store.listing.glances(fingerprint, agent_ids)) or []

    def _memories(self, glances: list[Glance]) -> list[_Memory]:
        """What the ledgers of these say."""
        new = [g for g in glances if self._read.get(g.folder, (-1,))[0] != g.ledger_bytes]
        for first in range(0, len(new), AT_ONCE):
            self._learn(new[first : first + AT_ONCE])
        return [self._read[glance.folder][1] for glance in glances]

    def _learn(self, some: list[Glance]) -> None:
        read = self._with_store(lambda store: [_read(store, glance.folder) for glance in some])
        for glance, memory in zip(some, read, strict=True):
            self._read[glance.folder] = (-1 if memory.problem else glance.ledger_bytes, memory)

    def _with_store(self, work: Any) -> Any:
        store = self._lifecycle.persistence
        return None if store is None else self._lifecycle.ask(store, WithStore(work))


def _read(store: Store, folder: str) -> _Memory:
    try:
        agent_id, records = store.listing.read(folder)
        sizes = _sizes(records)
        return _Memory(agent_id, len(sizes), sum(sizes))
    except (KvactorsError, OSError, KeyError, TypeError, ValueError) as error:
        return _Memory(folder, problem=str(error))


def _sizes(records: Iterable[Mapping[str, Any]]) -> list[int]:
    """Tokens of each turn that ledger records add up to (their form:
    kvactors.core.conversation.transcript)."""
    sizes: list[int] = []
    for record in records:
        kept = sizes[: record.get("keep", len(sizes))]
        sizes = [*kept, *(len(turn["tokens"]) // TOKEN_BYTES for turn in record["turns"])]
    return sizes


def _remembered(actor: AgentActor) -> _Memory:
    turns = list(actor.transcript.turns)
    return _Memory(actor.agent_id, len(turns), sum(len(turn.token_ids) for turn in turns))


def _state(memory: _Memory, held: HeldAgent | None, stored: Glance | None) -> AgentState:
    tier: Literal["active", "hot", "warm", "cold"] = (
        held.tier if held else "warm" if stored and stored.kv_tokens else "cold"
    )
    return AgentState(
        memory.agent_id,
        tier,
        memory.turns,
        memory.tokens,
        held.tokens if held else 0,
        held.nbytes if held else 0,
        stored.kv_tokens if stored else 0,
        stored.kv_bytes if stored else 0,
        stored.last_used if stored else None,
        memory.problem,
    )
