"""Which idle agent leaves memory first: the longest idle one, or what a user's own policy says.

A policy gets the idle agents, least recently used first, and the time, and gives their ids
in the order in which they should go; whom it does not name goes after them. It runs on the GPU
thread, walks all idle agents each time memory is short, and must not block.
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvactors.core.errors import InvalidConfig

__all__ = ["EvictionPolicy", "IdleAgent", "check_eviction", "in_order"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IdleAgent:
    """An agent that could be evicted: `nbytes` that would be freed, `tokens` it has cached, of
    which `saved` are on disk; `last_used` in seconds of the engine's clock."""

    agent_id: str
    nbytes: int
    tokens: int
    last_used: float
    saved: int


EvictionPolicy = Callable[[Sequence[IdleAgent], float], Sequence[str]]


def check_eviction(policy: object) -> EvictionPolicy | None:
    """The callable itself, or None for "lru". Raises InvalidConfig."""
    if policy == "lru":
        return None
    if not callable(policy):
        raise InvalidConfig(f'eviction must be "lru" or a callable: {policy!r}')
    try:
        inspect.signature(policy).bind([], 0.0)
    except TypeError as error:
        raise InvalidConfig(
            f"eviction is called as policy(idle agents, now), not as {policy!r}: {error}"
        ) from None
    except ValueError:
        # Of what C has written it may not be known.
        pass
    return policy


def in_order(
    policy: EvictionPolicy | None,
    idle: Callable[[], Iterator[IdleAgent]],
    clock: Callable[[], float],
) -> Iterator[IdleAgent]:
    """Idle agents in the order in which they go; each is gone before the next is asked for.

    `idle` gives those that are left, least recently used first. Without a `policy` only the first
    of them is looked at; one of the user's own sees all of them at once, at the time of `clock`.
    """
    if policy is None:
        while (oldest := next(idle(), None)) is not None:
            yield oldest
        return
    known = {agent.agent_id: agent for agent in idle()}
    for agent_id in _named(policy, list(known.values()), clock()):
        if isinstance(agent_id, str) and agent_id in known:
            yield known.pop(agent_id)
    # Whom the policy spares, or has not named when it raised, leave before a turn waits for ever.
    yield from known.values()


def _named(policy: EvictionPolicy, idle: Sequence[IdleAgent], now: float) -> Iterator[str]:
    """Whom the policy names, up to where it raises."""
    try:
        named = policy(idle, now)
        if isinstance(named, str):
            raise TypeError(f"an eviction policy gives ids in an order, not one text: {named!r}")
        yield from named
    except Exception:
        logger.exception("the eviction policy raised: the longest idle go")
