"""How times, bytes and operations grow with tokens, rows and agents: fits and a picture.

    python -m kvactors.bench.table.growth [--quick] [--only VALUE] [--plot PNG] [--json FILE]

A fit is value ~ size^order, by least squares over the logarithms, of the whole curve and of its
last half: an order near 0 is flat, near 1 linear. A curve breaks at the size from which its
local order is more than a half away from that before it.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvactors.bench.random_model import unnamed
from kvactors.bench.report import Origin, origin, print_table
from kvactors.bench.setup import QUICK, Scale, Setup, endless
from kvactors.bench.table.curves import CURVES, Curve
from kvactors.bench.table.figures import Figures
from kvactors.core.errors import InvalidConfig

__all__ = ["GROWTH", "Growth", "grow", "main"]

GROWTH = Scale(runs=3, shrink=1, fewer=1, decoded=24)
# Seconds and bytes as they are printed.
SCALES = {"ms": 1e3, "MB": 1e-6, "": 1.0}
BREAK = 0.5
# Points of a curve in a small scale.
FEWEST = 3


@dataclass(frozen=True, slots=True)
class Growth:
    """A measured curve."""

    curve: Curve
    sizes: tuple[int, ...]
    values: tuple[float, ...]
    measured: Origin

    @property
    def orders(self) -> tuple[float, float]:
        """Of the whole curve, and of its last half."""
        half = len(self.sizes) // 2
        return _order(self.sizes, self.values), _order(self.sizes[half:], self.values[half:])

    @property
    def breaks_at(self) -> int | None:
        """The size from which it grows at another order than before; None if it does not."""
        local = np.diff(np.log(self.values)) / np.diff(np.log(self.sizes))
        turns = np.abs(np.diff(local))
        worst = int(turns.argmax()) if len(turns) else 0
        return self.sizes[worst + 1] if len(turns) and turns[worst] > BREAK else None

    def row(self) -> tuple[object, ...]:
        """Cells of the table."""
        scale, (whole, last) = SCALES[self.curve.unit], self.orders
        ends = [f"{scale * value:.4g}" for value in (self.values[0], self.values[-1])]
        span = f"{self.sizes[0]:,}-{self.sizes[-1]:,} {self.curve.size}"
        breaks = "" if self.breaks_at is None else f"{self.breaks_at:,}"
        name = f"{self.curve.value} {self.curve.unit}".strip()
        return name, span, *ends, f"{whole:.2f}", f"{last:.2f}", breaks

    def as_json(self) -> dict[str, Any]:
        """The same for programs: seconds, bytes or counts."""
        return {
            "value": self.curve.value,
            "measured": self.curve.described,
            "over": self.curve.size,
            "points": list(zip(self.sizes, self.values, strict=True)),
            "unit": self.curve.unit,
            "orders": self.orders,
            "breaks_at": self.breaks_at,
            **self.measured.as_json(),
        }


def _order(sizes: Sequence[int], values: Sequence[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def grow(
    setup: Setup, model: str, plot: Path | None = None, curves: Sequence[Curve] = CURVES
) -> list[Growth]:
    """Measure `curves` of `setup`, with this name of a `model`, print their fits, draw `plot` if
    asked to."""
    found = []
    for curve in curves:
        print(f"{curve.value} by {curve.size}: {curve.described}", flush=True)
        sizes = curve.sizes if setup.scale.shrink == 1 else curve.sizes[:FEWEST]
        begun, points = origin(), list(curve.measure(setup, sizes))
        sizes, values = zip(*points, strict=True)
        found.append(Growth(curve, sizes, values, begun.ended()))
    print_table(
        f"Growth: value ~ size^order. {model}, 4-bit KV.",
        ("value", "over", "first", "last", "order", "of the last half", "breaks at"),
        [growth.row() for growth in found],
    )
    if plot is not None:
        draw(found, plot)
    return found


def draw(found: Sequence[Growth], path: Path) -> None:
    """One panel for each value and what it grows with, both axes logarithmic. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: dict[tuple[str, str], list[Growth]] = {}
    for growth in found:
        waiting = growth.curve.value in ("hot", "fork", "warm", "cold")
        title = "time to the first token" if waiting else growth.curve.value
        panels.setdefault((title, growth.curve.size), []).append(growth)
    rows = -(-len(panels) // 3)
    figure, grid = pyplot.subplots(rows, 3, figsize=(12, 3.2 * rows), layout="constrained")
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes, ((title, size), growths) in zip(grid.flat, panels.items(), strict=False):
        for growth in growths:
            label = f"{growth.curve.value}: order {growth.orders[0]:.2f}"
            scale = SCALES[growth.curve.unit]
            axes.plot(growth.sizes, [scale * v for v in growth.values], "o-", label=label)
        axes.set(title=title, xlabel=size, ylabel=growths[0].curve.unit, xscale="log", yscale="log")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print; draw and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument("--only", choices=sorted({c.value for c in CURVES}), help="these curves")
    parser.add_argument("--model", help="as mlx-lm loads it [random llama]")
    parser.add_argument("--plot", type=Path, help="write a PNG here (needs kvactors[plot])")
    parser.add_argument("--json", type=Path, help="write the points here, over those of before")
    options = parser.parse_args(arguments)
    source, model = unnamed(quick=options.quick)
    if options.model is not None:
        source, model = endless(options.model), options.model
    scale = QUICK if options.quick else GROWTH
    try:
        figures = Figures(options.json, model, scale, "growth")
    except InvalidConfig as error:
        parser.error(str(error))
    curves = [curve for curve in CURVES if options.only in (None, curve.value)]
    found = grow(Setup(scale, source), model, options.plot, curves)
    figures.keep_curves([growth.as_json() for growth in found])


if __name__ == "__main__":
    main()
