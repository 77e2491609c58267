"""A decode step of agents that share a beginning, against agents of the same length that do not.

    python -m kvactors.bench.cascade [--quick] [--runs 5] [--tokens 24]

Regime: every agent is forked from a parent with the beginning in memory, all from one or each
from its own, and all decode at once. In its first turn a fork shares all that the parent had;
in its second the full blocks of 256 tokens of it. Runs alternate; a ratio is the median of
those of neighbouring runs. 4-bit KV.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from kvactors.actors import AgentSystem, Sampling
from kvactors.bench.random_model import DESCRIPTION, VOCABULARY, random_llama
from kvactors.bench.report import print_json, print_table
from kvactors.core import blas

__all__ = ["main"]

# (agents, tokens of the beginning)
REGIMES = ((2, 1000), (4, 1000), (8, 1000), (16, 256), (16, 1000), (8, 4000))
QUICK = ((4, 300), (8, 300))
FIRST = Sampling(max_tokens=1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two short regimes, two runs")
    parser.add_argument("--runs", type=int, help="runs of each kind [5]")
    parser.add_argument("--tokens", type=int, help="tokens decoded in a turn [24]")
    options = parser.parse_args(arguments)
    runs = options.runs or (2 if options.quick else 5)
    tokens = options.tokens or (6 if options.quick else 24)

    blas.preload()
    rows = []
    for agents, beginning in QUICK if options.quick else REGIMES:
        with AgentSystem(random_llama, store=False, max_batch=agents, kv_bits=4) as system:
            _make_parents(system, agents, beginning)
            apart, shared = [], []
            for _ in range(runs):
                apart.append(_two_turns(system, list(range(agents)), tokens))
                shared.append(_two_turns(system, [0] * agents, tokens))
        ratios = np.median(np.divide(shared, apart), axis=0)
        times = [1000 * float(np.median(np.array(kind)[:, 0])) for kind in (apart, shared)]
        rows.append((agents, beginning, *times, *map(float, ratios)))

    print_table(
        f"Decode step of agents with one beginning, {runs} runs.\n{DESCRIPTION}.",
        ("agents", "beginning", "apart ms", "shared ms", "ratio", "in the 2nd turn"),
        rows,
    )
    names = ("agents", "beginning", "apart_ms", "shared_ms", "ratio", "ratio_second_turn")
    print_json("cascade", runs=runs, rows=[dict(zip(names, row, strict=True)) for row in rows])


def _make_parents(system: AgentSystem, agents: int, beginning: int) -> None:
    rng = np.random.default_rng(0)
    for index in range(agents):
        memory = rng.integers(1, VOCABULARY, beginning).tolist()
        system.spawn(f"parent {index}").ask(memory, sampling=FIRST).get()


def _two_turns(system: AgentSystem, parents: Sequence[int], tokens: int) -> tuple[float, float]:
    """Seconds of a decode step of new forks of these parents, in their first two turns."""
    forks = [
        system.spawn(f"fork {index}", from_=f"parent {parent}")
        for index, parent in enumerate(parents)
    ]
    steps = []
    for _ in range(2):
        replies = [fork.ask([1], sampling=Sampling(max_tokens=tokens)) for fork in forks]
        timings = [reply.get().timing for reply in replies]
        spent = max(t.total for t in timings) - min(t.first_token for t in timings)
        steps.append(spent / (tokens - 1))
    for fork in forks:
        system.forget(fork.agent_id)
    return steps[0], steps[1]


if __name__ == "__main__":
    main()
