"""Regimes of several nodes at once: what three give of three, and what two tell each other."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from kvactors.bench.cluster.nodes import a_cluster
from kvactors.bench.cluster.talking import Counter, Sender
from kvactors.bench.regime import ANYWHERE, NOTHING_DECODED, Regime, Side, Sides
from kvactors.bench.setup import FIRST, Setup

__all__ = ["REGIMES"]

NAMES = ("first", "second", "third")
EACH = 16
TURNS = 8
SINGLE, TOGETHER = 200, 20_000


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


@contextmanager
def messages(setup: Setup) -> Iterator[Sides]:
    """Messages a second, each a number, that a behaviour on one node sends to one on the other,
    5,000 at once, until the last of 20,000 is counted there; against 200 of which each waits until
    the one before is taken: a call for each."""
    with a_cluster(setup, "one", "two") as nodes:
        sender = nodes.cluster.spawn("sender", group="one", behaviour=Sender)
        counter = nodes.cluster.spawn("counter", group="two", behaviour=Counter)
        nodes.cluster.migrate(sender, "one")
        nodes.cluster.migrate(counter, "two")

        def sent(count: int, *, single: bool) -> Side:
            before = counter.request("how many?").get()
            begin = perf_counter()
            counted = sender.request([count, single]).get()
            seconds = perf_counter() - begin
            assert counted - before == count
            return Side(count / seconds)

        single, together = (setup.scale.number(count) for count in (SINGLE, TOGETHER))
        sent(single, single=False)
        yield lambda: sent(together, single=False), lambda: sent(single, single=True)


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
    Regime(
        "cluster-messages",
        "a call for each message",
        50,
        messages,
        "higher",
        "messages/s",
        differ=NOTHING_DECODED,
    ),
)
