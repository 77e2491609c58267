"""What `kvactors top` shows of a system: one dictionary that JSON can hold, without any text."""

import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pykka import ActorDeadError, Timeout

from kvactors.actors.messages import CountStored, ReadStats, ReadTurns
from kvactors.core.errors import KvactorsError

if TYPE_CHECKING:
    from kvactors.actors.society import Society

__all__ = ["take_snapshot"]

# Seconds that an actor may be busy with something else.
PATIENCE = 1.0


def take_snapshot(system: "Society") -> dict[str, Any]:
    """How a system is. `stats` and `turns` are None while the engine is too busy to say, or
    dead; what is stored is left out while the store cannot say. Raises SystemStopped."""
    crew, health, info = system._crew, system.health(), system.info
    stats, turns = None, None
    engine = _ask(crew.gpu, ReadStats())
    if engine is not None:
        counts, in_memory = engine
        stored = _ask(crew.persistence, CountStored(info.fingerprint, in_memory))
        stats = {**counts, **(stored or {})}
        turns = [asdict(turn) for turn in _ask(crew.gpu, ReadTurns()) or ()]
    return {
        "pid": os.getpid(),
        "at": time.monotonic(),
        "model": info.name,
        "device": info.device,
        "health": asdict(health),
        "agents": len(system._agents),
        "outstanding_turns": len(crew.outstanding.turns()),
        "stats": stats,
        "turns": turns,
    }


def _ask(actor: Any, message: Any) -> Any:
    try:
        return actor.ask(message, timeout=PATIENCE)
    except (ActorDeadError, Timeout, KvactorsError, OSError):
        return None
