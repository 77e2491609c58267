"""Agents that begin alike: forks of a parent, what each said, and what they have in memory."""

from collections.abc import Callable, Sequence

import numpy as np
from makers import prompt_of

from kvactors.core.engine.engine import Engine
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine

__all__ = ["ANSWER", "LONG", "held_bytes", "raise_parent", "run_children", "trunks"]

ANSWER = Sampling(max_tokens=6)
LONG = Sampling(max_tokens=30)


def held_bytes(engine: Engine) -> dict[str, list[bytes]]:
    """All that each agent has in memory."""
    hot = engine.memory.hot
    return {
        name: [
            np.concatenate(
                [np.array(p.groups[g][n]).astype(np.float64) for p in cache.pieces], axis=3
            ).tobytes()
            for g, group in enumerate(cache.pieces[0].groups)
            for n in sorted(group)
        ]
        for name in hot
        if (cache := hot.get(name)) is not None
    }


def trunks(engine: Engine) -> list[int]:
    """Tokens that rows read where they are, slab by slab."""
    arenas = engine.memory.running.arenas
    return sorted(slab.trunk.end for arena in arenas for slab in arena.table.slabs)


def raise_parent(engine: Engine, tokens: int = 600) -> list[int]:
    """An agent with a turn behind it: what it knows."""
    parent = make_request("parent", [], prompt_of(tokens), ANSWER)
    return run_engine(engine, [(0, parent)])["parent"].request.tokens


def run_children(
    engine: Engine, known: Sequence[int], each: Callable[[int], None] | None = None
) -> dict[str, list[int]]:
    """Forks of the parent, the parent and a stranger, some of whom come late: what each said."""
    turns = []
    for index, length in enumerate((5, 300, 1, 40, 17)):
        name = f"child {index}"
        engine.memory.fork("parent", name)
        sampling = Sampling(max_tokens=4 + 7 * index)
        turns.append(make_request(name, known, prompt_of(length, index), sampling, serial=index))
    turns.append(make_request("parent", known, [7, 8], LONG, turn=1))
    turns.append(make_request("stranger", [], prompt_of(90, 9), LONG))
    arrivals = [(3 * index, turn) for index, turn in enumerate(turns)]
    ends = run_engine(engine, arrivals, each)
    return {name: end.request.generated for name, end in ends.items()}
