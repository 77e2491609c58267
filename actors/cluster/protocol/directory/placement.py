"""Where an agent goes: pure functions of what nodes have."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest

__all__ = [
    "BOUND",
    "FORKED",
    "UNEVEN",
    "Load",
    "beside",
    "choose",
    "fullest",
    "levelling",
    "other_load",
]

BOUND = 1.25
"""A group stays together on a node that is so many times as full as the emptiest."""
FORKED = 4.0
"""A fork stays with its parent on a node that is so many times as full as the emptiest would be
with a copy of the parent: it costs next to nothing there."""
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


def beside(nodes: Mapping[str, Load], parent: str) -> bool:
    """Whether a fork may come to the one of `nodes` on which its `parent` lives. What that holds is
    taken for as much as agents of its node hold on average."""
    if (here := nodes.get(parent)) is None:
        return False
    least = min(load.held for load in nodes.values())
    return here.held <= FORKED * (least + here.held / max(1, here.agents)) + AGENT


def fullest(nodes: Mapping[str, Load], most: int) -> list[str]:
    """Up to `most` of them: `levelling` takes so many agents from no other."""
    return nlargest(most, nodes, key=lambda n: (nodes[n].held, n))


def _any(agent: str, source: str, target: str) -> int:
    return 0


def levelling(
    nodes: Mapping[str, Load],
    agents: Mapping[str, Sequence[str]],
    most: int,
    nearer: Callable[[str, str, str], int] = _any,
) -> list[tuple[str, str]]:
    """Up to `most` moves (agent, target) that bring `nodes` nearer to even: from the fullest to the
    emptiest, while what they hold is further than UNEVEN from the mean. `agents`: some of those of
    the fullest that may go; those go first that are most `nearer` to their groups on a target than
    on a source. An agent weighs what those of its node do on average."""
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
        agent = max(left[full], key=lambda a: nearer(a, full, empty))
        left[full].remove(agent)
        moves.append((agent, empty))
        weights[full] -= size
        weights[empty] += size
    return moves


def other_load(before: Mapping[str, Load], nodes: Mapping[str, Load]) -> bool:
    """Whether what some of these `nodes` hold has changed by more than half of UNEVEN since
    `before`: then agents are to be looked at again."""
    mean = sum(load.held for load in nodes.values()) / max(1, len(nodes))
    changes = (abs(load.held - before.get(n, Load()).held) for n, load in nodes.items())
    return max(changes, default=0) > mean * UNEVEN / 2
