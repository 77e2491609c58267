"""What a restart costs an agent of 50 to 20,000 tokens: its KV read, or all prefilled again.

    python -m kvactors.bench.experiments.restore [--quick] [--model M] [--plot out.png]

Regime: a system is started anew and asked 8 tokens [write-up, 5.2]. Cold: only the ledger is left;
seconds to the first token. Warm: the same with its KV on disk, out of the page cache where the
system can drop it; of that, read: until it was in memory. On disk: the KV's files. Medians.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

from kvactors.bench.experiments.experiment import Experiment, Row, begin, figure
from kvactors.bench.table.latency import remembering

__all__ = ["main"]

TOKENS = (50, 500, 1500, 3500, 5000, 20_000)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and a JSON line, draw if asked to."""
    run = begin("restore", __doc__, arguments)
    rows = [_row(run, size) for size in run.sizes(TOKENS)]
    run.show("The first token after a restart.", rows)
    if run.plot is not None:
        figure(run.plot, lambda axes: _draw(axes, rows))
    run.end(rows)


def _row(run: Experiment, size: int) -> Row:
    with remembering(run.setup, size) as memories:
        runs = [
            (memories.cold_reply().timing, memories.warm_reply().timing)
            for _ in range(run.setup.scale.runs)
        ]
        kept = memories.kv_bytes()
    cold = median(timing.first_token for timing, _ in runs)
    warm = median(timing.first_token for _, timing in runs)
    return {
        "tokens": size,
        "cold_s": cold,
        "warm_s": warm,
        "read_s": median(timing.restore for _, timing in runs),
        "on_disk_mb": kept / 1e6,
        "cold/warm": cold / warm,
    }


def _draw(axes: Any, rows: Sequence[Row]) -> None:
    for name in ("cold", "warm", "read"):
        tokens = [row["tokens"] for row in rows]
        axes.plot(tokens, [row[f"{name}_s"] for row in rows], marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="s", title="after a restart")
    axes.legend()


if __name__ == "__main__":
    main()
