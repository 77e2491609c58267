"""`kvactors bench`: runs the regimes, prints one table, and plots what it found."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Any

from kvactors.bench.random_model import DESCRIPTION, random_llama
from kvactors.bench.report import machine, print_table
from kvactors.bench.setup import Scale, Setup, endless
from kvactors.bench.table import decoding, footprint, latency, many_agents, prefill
from kvactors.bench.table.bounds import decode_bound, measure_rates, prefill_bound
from kvactors.bench.table.growth import grow
from kvactors.bench.table.regime import Outcome, Regime, run
from kvactors.core.errors import InvalidConfig

__all__ = ["REGIMES", "run_suite"]

REGIMES: tuple[Regime, ...] = (
    *prefill.REGIMES,
    *decoding.REGIMES,
    *footprint.REGIMES,
    *latency.REGIMES,
    *many_agents.REGIMES,
)
COLUMNS = ("regime", "ours", "theirs", "unit", "ratio", "quartiles", "target", "met")


def run_suite(
    scale: Scale,
    model: str | None = None,
    only: Sequence[str] = (),
    plot: Path | None = None,
    json: Path | None = None,
    *,
    growth: bool = False,
) -> list[Outcome]:
    """Measure the regimes whose names match one of `only` (regular expressions), or all; then how
    things grow, if asked to; at this `scale`. Ctrl-C ends it early, with what was measured.

    `model` None is the random llama of `kvactors.bench.random_model`. Writes `regimes.png` and
    `growth.png` into `plot`, and one JSON object into `json`. Raises InvalidConfig where no name
    matches.
    """
    setup = Setup(scale, random_llama if model is None else endless(model))
    chosen = [
        regime
        for regime in REGIMES
        if not only or any(re.search(pattern, regime.name) for pattern in only)
    ]
    if not chosen:
        raise InvalidConfig(f"no regime is called {', '.join(only)}")
    found: dict[str, Any] = {
        "bench": "suite",
        **machine(),
        "model": model or DESCRIPTION,
        "scale": asdict(scale),
        "bounds": _bounds(setup),
        "rows": [],
        "growth": [],
    }

    def keep(**more: list[Any]) -> None:
        """Write what was found so far: a run may take an hour and be stopped."""
        found.update(more)
        if json is not None:
            json.write_text(dumps(found, indent=1), encoding="utf-8")

    outcomes = []
    try:
        for regime in chosen:
            print(f"{regime.name}: {regime.described}", flush=True)
            outcomes.append(run(regime, setup))
            print("  " + "  ".join(outcomes[-1].row()[1:]), flush=True)
            keep(rows=[outcome.as_json() for outcome in outcomes])
    except KeyboardInterrupt:
        growth = False
        print("stopped: what was measured before follows", flush=True)
    title = f"{model or DESCRIPTION}, 4-bit KV, medians of {scale.runs} alternating runs."
    if scale.shrink > 1:
        title += (
            f"\nContexts are {scale.shrink} times shorter than the names say: this shows that all "
            "runs, not what is met."
        )
    print_table(
        title,
        COLUMNS,
        [outcome.row() for outcome in outcomes],
    )
    if plot is not None:
        plot.mkdir(parents=True, exist_ok=True)
        draw(outcomes, plot / "regimes.png")
    if growth:
        curves = grow(setup, model or DESCRIPTION, plot and plot / "growth.png")
        keep(growth=[curve.as_json() for curve in curves])
    return outcomes


def _bounds(setup: Setup) -> dict[str, float]:
    """Prints and returns what this machine allows, in seconds and in units a second."""
    rates = measure_rates(setup)
    bounds = {
        "prefill of 4,096": prefill_bound(setup, rates, 4096),
        "step, 1 agent of 4,096": decode_bound(setup, rates, 1, 4096),
        "step, 16 agents of 1,000": decode_bound(setup, rates, 16, 1000),
    }
    columns = ("products GFLOP/s", "reading GB/s", "scores GFLOP/s", "sums GFLOP/s")
    print_table(
        "What this machine does (quantized_matmul at 4 bits: scores of keys, sums of values).",
        columns,
        [rates.row()],
    )
    print_table(
        "Least ms by these rates, if mlx-lm's own kernels do the work.",
        tuple(bounds),
        [[1e3 * seconds for seconds in bounds.values()]],
    )
    return {**asdict(rates), **bounds}


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """How far each ratio is from its target, above 1 missed, as a PNG. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    measured = [outcome for outcome in outcomes if not outcome.cannot][::-1]
    values = [
        o.ratio / o.target if o.regime.better == "lower" else o.target / o.ratio for o in measured
    ]
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.3 * len(measured)), layout="constrained")
    colors = ["tab:green" if outcome.met else "tab:red" for outcome in measured]
    axes.barh([outcome.regime.name for outcome in measured], values, color=colors)
    axes.axvline(1, color="grey", linestyle="--")
    axes.set(xscale="log", xlabel="ratio / target (below 1: met)")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
