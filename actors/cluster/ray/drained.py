"""A node that leaves gives its agents away first, for as long as it has time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kvactors.actors.cluster.machine.link import Link
from kvactors.actors.cluster.protocol.errors import ClusterError
from kvactors.actors.cluster.ray.boot import LOOKS

__all__ = ["ANSWERS", "LEAVES", "drained"]

LEAVES = 30.0
"""Seconds that it takes for that at most: those that are left go on at their replicas."""
ANSWERS = 5.0
"""Seconds for which the directory is asked; without it nothing can be moved."""


@contextmanager
def drained(link: Link, name: str, hurry: Callable[[], bool]) -> Iterator[None]:
    """The node `name` of the cluster of `link` has no agents, if others take them in time, and is
    not told to `hurry`. It leaves within: when it is back it takes agents again, unless a person
    had drained it before."""
    node = _nodes(link).get(name, {})
    begun = _give_away(link, name, hurry) if node.get("agents") and not node["draining"] else False
    try:
        yield
    finally:
        if begun:
            _asked(link, "drain", node=name, on=False, leaving=True)


def _give_away(link: Link, name: str, hurry: Callable[[], bool]) -> bool:
    """Whether it was begun."""
    until = time.monotonic() + LEAVES
    begun = False
    while _others(nodes := _nodes(link), name) and nodes[name]["agents"]:
        if not begun:
            _asked(link, "drain", node=name, on=True, leaving=True)
            begun = True
        if hurry() or time.monotonic() > until:
            break
        time.sleep(LOOKS)
    return begun


def _others(nodes: dict[str, Any], name: str) -> bool:
    """Whether there is one that takes agents."""
    return any(node["alive"] and not node["draining"] for n, node in nodes.items() if n != name)


def _nodes(link: Link) -> dict[str, Any]:
    """What is known of all; nothing without the directory."""
    return dict(_asked(link, "stats").get("nodes", {}))


def _asked(link: Link, method: str, **record: Any) -> dict[str, Any]:
    try:
        return link.run(link.client.ask(method, record, ANSWERS))
    except ClusterError:
        return {}
