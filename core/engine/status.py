"""What an engine says of itself: counts for `stats()`, and the turns that run. GPU thread only."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvactors.core.schedule.request import Request

if TYPE_CHECKING:
    from kvactors.core.engine.memory import Memory
    from kvactors.core.engine.running import RunningBatches

__all__ = ["HeldAgent", "RunningTurn", "count", "held", "in_memory", "turns"]

# Waiting turns that are named; there may be a hundred thousand.
MOST_WAITING = 32


@dataclass(frozen=True, slots=True)
class RunningTurn:
    """A turn and how far it is: tokens prefilled of those that were not cached, or decoded of
    `max_tokens` at most."""

    agent_id: str
    phase: Literal["waiting", "restoring", "prefill", "decode"]
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class HeldAgent:
    """An agent whose KV is in memory: of how many `tokens`, in how many bytes. What several share
    counts for each."""

    tier: Literal["active", "hot"]
    tokens: int
    nbytes: int


def turns(
    running: "RunningBatches", waiting: Iterable[Request], restoring: Callable[[str], bool]
) -> tuple[RunningTurn, ...]:
    """The turns that are `running`, then the first of those `waiting`; `restoring` says whose KV is
    being read."""
    found = [_prefilling(request) for request in running.prefills]
    for batch in running.decoding:
        found += [
            RunningTurn(r.agent_id, "decode", r.decoded, r.sampling.max_tokens)
            for r in batch.requests
        ]
    for _, request in zip(range(MOST_WAITING), waiting, strict=False):
        phase: Literal["waiting", "restoring"] = (
            "restoring" if restoring(request.agent_id) else "waiting"
        )
        found.append(RunningTurn(request.agent_id, phase, 0, request.target))
    return tuple(found)


def _prefilling(request: Request) -> RunningTurn:
    done, total = request.cached - request.kept, request.target - request.kept
    return RunningTurn(request.agent_id, "prefill", done, total)


def in_memory(memory: "Memory") -> frozenset[str]:
    """The agents whose KV is in memory, in whole or in part: active or hot."""
    return frozenset(memory.hot).union(request.agent_id for request in memory.running.active)


def held(memory: "Memory", agent_ids: Collection[str]) -> dict[str, HeldAgent]:
    """Every agent whose KV is in memory, by id; of `agent_ids` alone if there are any."""
    found = dict[str, HeldAgent]()
    for agent_id in agent_ids or memory.hot:
        if (cache := memory.hot.get(agent_id)) is not None:
            size = sum(piece.nbytes for piece in cache.pieces)
            found[agent_id] = HeldAgent("hot", cache.end, size)
    for request in memory.running.active:
        if agent_ids and request.agent_id not in agent_ids:
            continue
        size = request.form.bytes_of(request.cached)
        found[request.agent_id] = HeldAgent("active", request.cached, size)
    return found


def count(memory: "Memory", waiting: int) -> dict[str, int]:
    """Agents, tokens and bytes by tier, and of the budget, in `memory`; so many turns are
    `waiting`."""
    running, hot = memory.running, memory.hot
    active = running.active
    return {
        "waiting": waiting,
        "prefilling": len(running.prefills),
        "decoding": len(active) - len(running.prefills),
        "active_agents": len(active),
        "active_tokens": sum(request.cached for request in active),
        "active_bytes": memory.rows.nbytes,
        "hot_agents": len(in_memory(memory)) - len(active),
        "hot_tokens": hot.tokens({request.agent_id for request in active}),
        # With what active agents began with: it stays beside their rows.
        "hot_bytes": hot.held.cached_bytes,
        # What is hot is written from where it stands: `used_bytes` has it once.
        "backlog_bytes": memory.backlog,
        "used_bytes": memory.used,
        "budget_bytes": memory.budget,
        "mlx_bytes": memory.active,
        "blocks_used": hot.blocks.used_blocks,
        "blocks_total": hot.blocks.total,
        "evictions": memory.evictions,
    }
