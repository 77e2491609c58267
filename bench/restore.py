"""Time to the first token of an agent that is hot, warm or cold.

    python -m kvactors.bench.restore [--quick] [--runs 5]

Regime: one agent at a time, a memory of 256 to 4,096 tokens, a question of 8 tokens. Hot: its
KV is in memory. Warm: a new system, the KV is on disk (in the page cache: the machine was
not restarted). Cold: the same ledger without KV, so that all of it is prefilled.
"""

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from kvactors.actors import AgentSystem, Reply, Sampling
from kvactors.bench.random_model import DESCRIPTION, VOCABULARY, random_llama
from kvactors.bench.report import print_json, print_table

__all__ = ["main"]

SIZES = (256, 512, 1024, 2048, 4096)
QUESTION = 8
FIRST = Sampling(max_tokens=1)

Measured = dict[int, list[float]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two sizes, two runs")
    parser.add_argument("--runs", type=int, help="agents of each size [5]")
    options = parser.parse_args(arguments)
    sizes = SIZES[:2] if options.quick else SIZES
    runs = options.runs or (2 if options.quick else 5)

    with tempfile.TemporaryDirectory(prefix="kvactors-restore-") as folder:
        store, spare, bare = (Path(folder) / name for name in ("store", "spare", "bare"))
        _prepare(store, sizes, runs)
        # Every state is measured on the same memories, so each has its own copy.
        shutil.copytree(store, spare)
        shutil.copytree(store / "agents", bare / "agents")
        hot = _measure(spare, sizes, runs, "hot")
        warm = _measure(store, sizes, runs, "warm")
        cold = _measure(bare, sizes, runs, "cold")

    rows = []
    for size in sizes:
        times = [1000 * median(state[size]) for state in (cold, warm, hot)]
        rows.append((size, *times, times[0] / times[1]))
    print_table(
        f"Time to first token, medians of {runs} agents each.\n{DESCRIPTION}, 4-bit KV.",
        ("tokens", "cold ms", "warm ms", "hot ms", "cold/warm"),
        rows,
    )
    names = ("tokens", "cold_ms", "warm_ms", "hot_ms", "cold_over_warm")
    print_json("restore", runs=runs, rows=[dict(zip(names, row, strict=True)) for row in rows])


def _names(sizes: Sequence[int], runs: int) -> list[tuple[int, str]]:
    """One run of every size after the other, so that drift spreads over all sizes."""
    return [(size, f"agent of {size}, run {run}") for run in range(runs) for size in sizes]


def _prepare(store: Path, sizes: Sequence[int], runs: int) -> None:
    """Give every agent its memory, on disk."""
    rng = np.random.default_rng(0)
    with AgentSystem(random_llama, store=store) as system:
        for size, name in [*_names(sizes, runs), (QUESTION, "first")]:
            memory = rng.integers(1, VOCABULARY, size).tolist()
            reply = system.spawn(name).ask(memory, sampling=FIRST).get()
            reply.cached.get()


def _measure(store: Path, sizes: Sequence[int], runs: int, state: str) -> Measured:
    """First-token times by size. Raises AssertionError if an agent is in another state."""
    found: Measured = {size: [] for size in sizes}
    with AgentSystem(random_llama, store=store) as system:
        _ask(system, "first")
        for size, name in _names(sizes, runs):
            if state == "hot":
                _ask(system, name)
            reply = _ask(system, name)
            assert reply.cache == state, f"{name} is {reply.cache}, not {state}"
            found[size].append(reply.timing.first_token)
    return found


def _ask(system: AgentSystem, name: str) -> Reply:
    question = list(range(1, QUESTION + 1))
    reply: Reply = system.spawn(name).ask(question, sampling=FIRST).get()
    # The next agent is measured without this one's save running beside it.
    reply.cached.get()
    return reply


if __name__ == "__main__":
    main()
