"""A regime of several nodes at once: what three give of three."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from kvactors.bench.cluster.nodes import a_cluster
from kvactors.bench.regime import ANYWHERE, NOTHING_DECODED, Regime, Side, Sides
from kvactors.bench.setup import FIRST, Setup

__all__ = ["REGIMES"]

NAMES = ("first", "second", "third")
EACH = 16
TURNS = 8


@contextmanager
def three_nodes(setup: Setup) -> Iterator[Sides]:
    """Turns a second of three nodes of Ray whose engines take 0.2 s for a turn, 4 at once, and
    nothing of the processor: 48 agents, each asked by a thread of its own 8 times in a row, against
    the 60 a second that three such engines can give."""
    turns = setup.scale.number(TURNS)
    with a_cluster(setup, "head") as nodes:
        # Ray is there.
        from kvactors.bench.cluster.fixed import PLACES, STEP, start_fixed

        kept = [start_fixed(name, "head", nodes.settings) for name in NAMES]
        nodes.cluster.drain("head")
        agents = [nodes.cluster.spawn(f"agent {i}", group=f"{i}") for i in range(3 * EACH)]

        def ask(agent: Any) -> None:
            for _ in range(turns):
                agent.ask([1], sampling=FIRST).get()

        def ours() -> Side:
            with ThreadPoolExecutor(len(agents)) as threads:
                begin = perf_counter()
                list(threads.map(ask, agents))
                return Side(turns * len(agents) / (perf_counter() - begin))

        ours()
        yield ours, lambda: Side(len(NAMES) * PLACES / STEP)
        assert len(kept) == len(NAMES)


REGIMES = (
    Regime(
        "cluster-three",
        "what three engines give",
        0.9,
        three_nodes,
        "higher",
        "turns/s",
        holds_on=ANYWHERE,
        differ=NOTHING_DECODED,
    ),
)
