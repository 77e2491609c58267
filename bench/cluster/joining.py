"""A regime of a node that comes: what it costs those who are asked meanwhile."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np

from kvactors.actors import Sampling
from kvactors.bench.cluster.nodes import Nodes, a_cluster
from kvactors.bench.random_model import random_llama
from kvactors.bench.regime import ANYWHERE, NOTHING_DECODED, Regime, Side, Sides
from kvactors.bench.setup import Setup

__all__ = ["REGIMES"]

AGENTS, CONTEXT, ASKED = 24, 512, 200
EVEN = 1.2
SHORT = Sampling(max_tokens=2)


@contextmanager
def joined(setup: Setup) -> Iterator[Sides]:
    """The 99th percentile of turns (8 tokens behind 512 and the turns before, 2 new ones) that two
    threads ask of 24 agents of one node, 200 or more from the moment at which an empty node takes
    agents to the one at which both hold bytes within 20 % of even; against 200 before. The empty
    node was drained, so that the start of a process is not in it; random llama."""
    with a_cluster(setup, "one", "two") as nodes:
        nodes.cluster.drain("two")
        agents = [nodes.cluster.spawn(f"agent {i}", group="all") for i in range(AGENTS)]
        for seed, agent in enumerate(agents):
            agent.ask(setup.prompt(setup.scale.tokens(CONTEXT), seed, random_llama)).get()

        def quiet() -> Side:
            nodes.cluster.drain("two")
            return _p99(agents, setup.scale.number(ASKED), lambda: True)

        def ours() -> Side:
            nodes.cluster.drain("two")
            nodes.cluster.drain("two", undo=True)
            return _p99(agents, setup.scale.number(ASKED), lambda: _even(nodes))

        quiet()
        yield ours, quiet


def _even(nodes: Nodes) -> bool:
    """By the bytes that the nodes said they have."""
    held = [int(node["bytes"]) for node in nodes.cluster.stats()["nodes"].values()]
    return max(held) <= EVEN * sum(held) / len(held)


def _p99(agents: Sequence[Any], count: int, over: Callable[[], bool]) -> Side:
    """Of the seconds of turns of `agents`, each by two threads in turns: `count` or more, until it
    is `over`."""
    seconds: list[float] = []
    done = threading.Event()

    def ask(part: Sequence[Any]) -> None:
        turn = 0
        while not done.is_set():
            begin = perf_counter()
            part[turn % len(part)].ask(list(range(1, 9)), sampling=SHORT).get()
            seconds.append(perf_counter() - begin)
            turn += 1

    with ThreadPoolExecutor(2) as threads:
        asking = [threads.submit(ask, agents[half::2]) for half in range(2)]
        try:
            while not (len(seconds) >= count and over()):
                done.wait(0.1)
                assert not any(one.done() for one in asking), [one.exception() for one in asking]
        finally:
            done.set()
    return Side(float(np.percentile(seconds, 99)))


REGIMES = (
    Regime(
        "cluster-join",
        "the same turns before",
        2.0,
        joined,
        runs=3,
        holds_on=ANYWHERE,
        differ=NOTHING_DECODED,
    ),
)
