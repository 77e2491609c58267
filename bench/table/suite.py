"""`kvactors bench`: runs the regimes, prints one table, and plots what it found."""

from collections.abc import Sequence
from pathlib import Path

from kvactors.bench.cluster import crossing, directory, joining, several
from kvactors.bench.random_model import unnamed
from kvactors.bench.regime import Outcome, Regime, matching, run
from kvactors.bench.report import print_table
from kvactors.bench.serve import speed, traces
from kvactors.bench.setup import QUICK, Scale, Setup, endless
from kvactors.bench.steps import drafting, flat, guided, speculation
from kvactors.bench.table import (
    decoding,
    footprint,
    gaps,
    latency,
    launching,
    many_agents,
    prefill,
)
from kvactors.bench.table.bounds import show_bounds
from kvactors.bench.table.figures import Figures, draw, make_folder
from kvactors.bench.table.growth import grow

__all__ = ["REGIMES", "choose", "run_suite"]

REGIMES: tuple[Regime, ...] = (
    *prefill.REGIMES,
    *decoding.REGIMES,
    *launching.REGIMES,
    *flat.REGIMES,
    *guided.REGIMES,
    *speculation.REGIMES,
    *drafting.REGIMES,
    *footprint.REGIMES,
    *latency.REGIMES,
    *gaps.REGIMES,
    *many_agents.REGIMES,
    *speed.REGIMES,
    *traces.REGIMES,
    *crossing.REGIMES,
    *several.REGIMES,
    *joining.REGIMES,
    *directory.REGIMES,
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
    """Measure the regimes whose names match one of `only` (regular expressions) and nothing else;
    or what the machine does, all regimes, and how things grow, if asked to; at this `scale`. What
    ends it early, such as Ctrl-C, is raised behind the table of what was measured.

    `model` None is the random llama of `kvactors.bench.random_model`, at the scale QUICK the small
    one. Writes `regimes.png` and `growth.png` into `plot`, and one JSON object into `json`, where
    rows that are not measured stay as they were. Raises InvalidConfig, before anything is measured,
    where a name matches none, where `json` is of another model or scale, and where `plot` cannot
    be.
    """
    chosen = choose(only)
    source, told = unnamed(quick=scale == QUICK) if model is None else (endless(model), model)
    setup = Setup(scale, source)
    figures = Figures(json, told, scale)
    if plot is not None:
        make_folder(plot)
    if not only:
        figures.keep(bounds=show_bounds(setup))
    outcomes: list[Outcome] = []
    try:
        for regime in chosen:
            print(f"{regime.name}: {regime.described}", flush=True)
            outcomes.append(run(regime, setup))
            print("  " + "  ".join(outcomes[-1].row()[1:]), flush=True)
            figures.keep_row(outcomes[-1].as_json(), [each.name for each in REGIMES])
    finally:
        if outcomes:
            title = _title(told, scale)
            print_table(title, COLUMNS, [each.row() for each in outcomes])
    if plot is not None:
        draw([outcome.as_json() for outcome in outcomes], plot / "regimes.png")
    if growth and not only:
        curves = grow(setup, told, plot and plot / "growth.png")
        figures.keep(growth=[curve.as_json() for curve in curves])
    return outcomes


def choose(only: Sequence[str]) -> list[Regime]:
    """The regimes whose names match one of these patterns; all where there is none. Raises
    InvalidConfig where a pattern matches no name, or is none."""
    names = matching([regime.name for regime in REGIMES], only, "regime")
    return [regime for regime in REGIMES if regime.name in names]


def _title(model: str, scale: Scale) -> str:
    title = f"{model}, 4-bit KV, medians of {scale.runs} alternating runs."
    if scale.shrink > 1:
        title += (
            f"\nContexts are {scale.shrink} times shorter than the names say: this shows that all "
            "runs, not what is met."
        )
    return title
