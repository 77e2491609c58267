"""Where an agent goes: pure functions of what nodes have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["BOUND", "UNEVEN", "Load", "choose", "levelling", "other_load"]

BOUND = 1.25
"""A group stays together on a node that is so many times as full as the emptiest."""
UNEVEN = 0.2
"""Nodes this near to the mean are even."""
TURN = 64 * 2**20
"""A turn that waits weighs as much as so many bytes held."""
AGENT = 2**20
"""So does an agent that is not in memory."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one node has."""

    bytes: int = 0
    waiting: int = 0
    agents: int = 0

    @property
    def weight(self) -> int:
        """One number of all."""
        return self.held + TURN * self.waiting

    @property
    def held(self) -> int:
        """The same without what waits just now, which is over before an agent has moved."""
        return self.bytes + AGENT * self.agents


def choose(nodes: Mapping[str, Load], together: Mapping[str, int]) -> str | None:
    """The least loaded of `nodes`, or, within a bound, the one with most of the group's agents, of
    which `together` says how many each has. None of none."""
    if not nodes:
        return None
    least = min(load.weight for load in nodes.values())
    near = [n for n, load in nodes.items() if load.weight <= BOUND * least + AGENT]
    return min(near, key=lambda n: (-together.get(n, 0), nodes[n].weight, n))


def levelling(
    nodes: Mapping[str, Load], agents: Mapping[str, Sequence[str]], most: int
) -> list[tuple[str, str]]:
    """Up to `most` moves (agent, target) that bring `nodes` nearer to even: from the fullest to the
    emptiest, while what they hold is further than UNEVEN from the mean. `agents`: who lives where
    and may go. An agent weighs what those of its node do on average."""
    weights = {node: float(load.held) for node, load in nodes.items()}
    left = {node: list(agents.get(node, ())) for node in nodes}
    sizes = {n: weights[n] / max(1, load.agents, len(left[n])) for n, load in nodes.items()}
    moves: list[tuple[str, str]] = []
    while len(moves) < most and len(nodes) > 1:
        mean = sum(weights.values()) / len(weights)
        full = max(weights, key=lambda n: (weights[n], n))
        empty = min(weights, key=lambda n: (weights[n], n))
        size = sizes[full]
        uneven = weights[full] > mean * (1 + UNEVEN) or weights[empty] < mean * (1 - UNEVEN)
        if not uneven or not left[full] or weights[full] - weights[empty] < 2 * size:
            break
        moves.append((left[full].pop(), empty))
        weights[full] -= size
        weights[empty] += size
    return moves


def other_load(before: Mapping[str, Load], nodes: Mapping[str, Load]) -> bool:
    """Whether what some of these `nodes` hold has changed by more than half of UNEVEN since
    `before`: then agents are to be looked at again."""
    mean = sum(load.held for load in nodes.values()) / max(1, len(nodes))
    changes = (abs(load.held - before.get(n, Load()).held) for n, load in nodes.items())
    return max(changes, default=0) > mean * UNEVEN / 2
