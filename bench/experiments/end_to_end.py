"""A whole turn of 64 tokens behind 1K to 16K: cold, warm and hot.

    python -m kvactors.bench.experiments.end_to_end [--quick] [--model M] [--plot out.png]

Regime: one agent is asked 8 tokens and answers with 64 [paper, 4.2]. Cold: only its ledger is left.
Warm: its KV is on disk, out of the page cache where the system can drop it. Hot: in memory. Without
a cache: mlx-lm in a process of its own prefills the whole prompt. Medians.
"""

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

from kvactors.bench.experiments.experiment import Experiment, Row, begin, figure
from kvactors.bench.experiments.uncached import Turns, uncached
from kvactors.bench.peer_process import in_its_own_process
from kvactors.bench.table.latency import QUESTION, remembering

__all__ = ["main"]

TOKENS = (1024, 2048, 4096, 8192, 16_384)
DECODED = 64


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print tables and a JSON line, draw if asked to."""
    run = begin("end_to_end", __doc__, arguments)
    sizes, decoded = run.sizes(TOKENS), min(DECODED, 2 * run.setup.scale.decoded)
    longest = run.setup.prompt(sizes[-1])
    with in_its_own_process(run.setup.source, uncached, longest) as theirs:
        rows = [_row(run, size, theirs, decoded) for size in sizes]
    run.show(f"A question of {len(QUESTION)} tokens, an answer of {decoded}.", rows)
    if run.plot is not None:
        figure(run.plot, lambda axes: _draw(axes, rows))
    run.end(rows, decoded=decoded)


def _row(run: Experiment, size: int, theirs: Turns, decoded: int) -> Row:
    """Medians of runs that take turns."""
    with remembering(run.setup, size) as memories:
        found: dict[str, list[float]] = {"cold": [], "warm": [], "hot": [], "mlx-lm": []}
        prompt = [*memories.prompt, 1, *QUESTION]
        for _ in range(run.setup.scale.runs):
            found["cold"].append(memories.cold_reply(decoded).timing.total)
            found["warm"].append(memories.warm_reply(decoded).timing.total)
            with memories.hot() as system:
                found["hot"].append(memories.reply(system, tokens=decoded).timing.total)
            found["mlx-lm"].append(theirs(prompt, decoded).total_s)
    cold, warm, hot, other = (median(seconds) for seconds in found.values())
    return {
        "tokens": size,
        "cold_s": cold,
        "warm_s": warm,
        "hot_s": hot,
        "mlx-lm_s": other,
        "cold/warm": cold / warm,
        "cold/hot": cold / hot,
        "mlx-lm/hot": other / hot,
    }


def _draw(axes: Any, rows: Sequence[Row]) -> None:
    line = partial(axes.plot, [row["tokens"] for row in rows], marker="o")
    for name in ("cold", "warm", "hot", "mlx-lm"):
        line([row[f"{name}_s"] for row in rows], label=name)
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="s", title="a turn of 64 tokens")
    axes.legend()


if __name__ == "__main__":
    main()
