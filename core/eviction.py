"""Which idle agent leaves memory first. Pure; a policy of the user's own is a callable.

A policy gets the idle agents, least recently used first, and the time, and gives their ids
in the order in which they should go. It runs on the GPU thread and must not block.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvactors.core.errors import InvalidConfig

__all__ = ["EvictionPolicy", "IdleAgent", "check_eviction", "least_recently_used", "least_worth"]


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

# What reading a token back from disk costs, as a share of computing it anew.
_RESTORE_SHARE = 0.02
# Tokens at which attention costs as much of a prefill as everything else.
_ATTENTION_TOKENS = 8192


def least_recently_used(idle: Sequence[IdleAgent], now: float) -> Sequence[str]:
    """The longest idle first."""
    return [agent.agent_id for agent in idle]


def least_worth(idle: Sequence[IdleAgent], now: float) -> Sequence[str]:
    """First those that free most bytes, for the longest time, and cost least to bring back."""
    return [agent.agent_id for agent in sorted(idle, key=lambda agent: _worth(agent, now))]


def _worth(agent: IdleAgent, now: float) -> float:
    lost = agent.tokens - agent.saved
    cost = lost * (1 + agent.tokens / _ATTENTION_TOKENS) + _RESTORE_SHARE * agent.saved
    return cost / (max(1, agent.nbytes) * max(1e-3, now - agent.last_used))


_NAMED: dict[str, EvictionPolicy] = {"lru": least_recently_used, "worth": least_worth}


def check_eviction(policy: object) -> EvictionPolicy:
    """The policy of this name, or the callable itself. Raises InvalidConfig."""
    if isinstance(policy, str) and policy in _NAMED:
        return _NAMED[policy]
    if not callable(policy):
        raise InvalidConfig(f"eviction must be one of {sorted(_NAMED)} or a callable: {policy!r}")
    return policy
