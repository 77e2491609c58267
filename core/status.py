"""What an engine says of itself: counts for `stats()`, and the turns that run. GPU thread only."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvactors.core.request import Request

if TYPE_CHECKING:
    from kvactors.core.memory import Memory
    from kvactors.core.rows import Rows

__all__ = ["RunningTurn", "count", "turns"]

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


def turns(
    rows: "Rows", waiting: Iterable[Request], restoring: Collection[str]
) -> tuple[RunningTurn, ...]:
    """The turns that run, then the first of those that wait."""
    found = [_prefilling(request) for request in rows.prefills]
    for batch in rows.decoding:
        found += [
            RunningTurn(r.agent_id, "decode", r.decoded, r.sampling.max_tokens)
            for r in batch.requests
        ]
    for _, request in zip(range(MOST_WAITING), waiting, strict=False):
        phase: Literal["waiting", "restoring"] = (
            "restoring" if request.agent_id in restoring else "waiting"
        )
        found.append(RunningTurn(request.agent_id, phase, 0, request.target))
    return tuple(found)


def _prefilling(request: Request) -> RunningTurn:
    done, total = request.cached - request.kept, request.target - request.kept
    return RunningTurn(request.agent_id, "prefill", done, total)


def count(
    rows: "Rows", memory: "Memory", waiting: int, in_memory: Collection[str]
) -> dict[str, int]:
    """Agents, tokens and bytes by tier, and of the budget."""
    active = rows.active
    return {
        "waiting": waiting,
        "prefilling": len(rows.prefills),
        "decoding": len(active) - len(rows.prefills),
        "active_agents": len(active),
        "active_tokens": sum(request.cached for request in active),
        "active_bytes": rows.nbytes,
        "hot_agents": len(in_memory) - len(active),
        "hot_tokens": memory.hot.tokens({request.agent_id for request in active}),
        # With what active agents began with: it stays beside their rows.
        "hot_bytes": memory.hot.nbytes,
        "backlog_bytes": memory.backlog,
        "budget_bytes": memory.budget,
        "mlx_bytes": memory.active,
        "blocks_used": memory.pool.used_blocks,
        "blocks_total": memory.pool.total,
        "evictions": memory.evictions,
    }
