"""What `kvactors top` shows of a system: one dictionary that JSON can hold, without any text."""

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from pykka import ActorDeadError, Timeout

from kvactors.actors.turns.messages_gpu import ReadStats, ReadTurns
from kvactors.actors.turns.messages_store import CountStored
from kvactors.core.errors import KvactorsError

__all__ = ["take_snapshot"]

Ask = Callable[[Any], Any]


def take_snapshot(
    known: dict[str, Any], fingerprint: str, ask_gpu: Ask, ask_store: Ask
) -> dict[str, Any]:
    """How a system is: what is `known` without asking, and what its actors say. `stats` and
    `turns` are None while the engine is too busy to say, or dead; what is stored under the
    model's `fingerprint` is left out while the store cannot say.

    `ask_gpu` and `ask_store` put a message to an actor and wait for a while at most.
    """
    stats, turns = None, None
    engine = _patiently(ask_gpu, ReadStats())
    if engine is not None:
        counts, in_memory = engine
        stored = _patiently(ask_store, CountStored(fingerprint, in_memory))
        stats = {**counts, **(stored or {})}
        turns = [asdict(turn) for turn in _patiently(ask_gpu, ReadTurns()) or ()]
    now = {"pid": os.getpid(), "at": time.monotonic()}
    return {**now, **known, "stats": stats, "turns": turns}


def _patiently(ask: Ask, message: Any) -> Any:
    try:
        return ask(message)
    except (ActorDeadError, Timeout, KvactorsError, OSError):
        return None
