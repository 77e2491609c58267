"""The same conversations in every company: alone, in a batch, forked, and after a restart.

All through AgentSystem and a store on this machine's disk, as users have them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvactors.actors import Agent, AgentSystem, Reply, Sampling
from kvactors.bench.check.kinds import VOCABULARY

__all__ = ["AGENTS", "PROMPTS", "TURNS", "Heard", "converse"]

# Seconds that any one answer may take.
WAIT = 60.0

# Shorter and longer than the window (12) and than a block (256); more agents than rows.
LENGTHS = (5, 40, 1, 13, 270, 300)
AGENTS, TURNS = len(LENGTHS), 3
MAX_BATCH = 4
_RNG = np.random.default_rng(20)
PROMPTS: list[list[list[int]]] = [
    [_RNG.integers(1, VOCABULARY, count).tolist() for count in (length, 7, 12 + length // 9)]
    for length in LENGTHS
]
"""Token ids by agent and turn."""


@dataclass(frozen=True, slots=True)
class Heard:
    """Replies by agent and turn. `together`: the first two turns in a batch, the third after a
    restart. `forked`: the third turn of each one's child, in a batch. `batched`: whether rows ran
    in one forward, or one by one."""

    alone: list[list[Reply]]
    together: list[list[Reply]]
    forked: list[Reply]
    batched: bool


def converse(model: Callable[[], Any], folder: Path, **options: Any) -> Heard:
    """Three turns of every agent of `model`, in each company, with the store in `folder`; with
    these `options` of AgentSystem."""
    with _system(model, folder, options) as system:
        batched = system.info.spec.batched
        alone = [
            [_ask(system.spawn(f"alone {i}"), i, turn).get(timeout=WAIT) for turn in range(TURNS)]
            for i in range(AGENTS)
        ]
        agents = [system.spawn(f"agent {i}") for i in range(AGENTS)]
        batches = [_all(agents, turn) for turn in range(2)]
        children = [system.spawn(f"child {i}", from_=agent) for i, agent in enumerate(agents)]
        forked = _all(children, 2)
        for reply in batches[-1]:
            reply.cached.get(timeout=WAIT)
    with _system(model, folder, options) as system:
        batches.append(_all([system.spawn(f"agent {i}") for i in range(AGENTS)], 2))
    return Heard(alone, [list(turns) for turns in zip(*batches, strict=True)], forked, batched)


def _all(agents: Sequence[Agent], turn: int) -> list[Reply]:
    pending = [_ask(agent, i, turn) for i, agent in enumerate(agents)]
    return [future.get(timeout=WAIT) for future in pending]


def _ask(agent: Agent, index: int, turn: int) -> Any:
    # They end one after the other, and the next ones join.
    return agent.ask(PROMPTS[index][turn], sampling=Sampling(max_tokens=8 + 3 * index))


@contextmanager
def _system(
    model: Callable[[], Any], folder: Path, options: dict[str, Any]
) -> Iterator[AgentSystem]:
    system = AgentSystem(model, store=folder, model_name="check", max_batch=MAX_BATCH, **options)
    system.start()
    try:
        yield system
    finally:
        system.stop(timeout=WAIT)
