"""One line of the performance table: what is measured, against what, and what it should be.

A regime yields pairs (ours, theirs), measured in turns, so that a machine that slows down
slows both. Its ratio is the median of the ratios of these pairs, its spread their quartiles.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any, Literal

import numpy as np

from kvactors.bench.setup import Setup

__all__ = ["CannotRun", "Outcome", "Regime", "run"]

Pairs = Iterator[tuple[float, float]]


class CannotRun(Exception):
    """Why a regime cannot be measured here: what the peer lacks, or the machine."""


@dataclass(frozen=True, slots=True)
class Regime:
    """A comparison. `measure` yields (ours, theirs) in `unit`, forever or a few times."""

    name: str
    against: str
    target: float | Callable[[Setup], float]
    measure: Callable[[Setup], Pairs]
    better: Literal["lower", "higher"] = "lower"
    unit: str = "ms"
    """"ms": what is yielded are seconds. Anything else is printed as it is."""
    runs: int | None = None
    """Fewer than usual, where a measurement cannot vary."""

    @property
    def described(self) -> str:
        """Exactly what is compared: the docstring of `measure`."""
        return " ".join((self.measure.__doc__ or "").split())


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a regime gave: medians, the ratio with its quartiles; or why there is none."""

    regime: Regime
    target: float
    ours: float = float("nan")
    theirs: float = float("nan")
    ratio: float = float("nan")
    spread: tuple[float, float] = (float("nan"), float("nan"))
    runs: int = 0
    cannot: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target holds; None if it could not be measured."""
        if self.cannot:
            return None
        if self.regime.better == "higher":
            return self.ratio >= self.target
        return self.ratio <= self.target

    def row(self) -> tuple[str, ...]:
        """Cells of the table."""
        sign = {"lower": "<=", "higher": ">="}[self.regime.better]
        target = f"{sign} {self.target:.4g}"
        if self.cannot:
            return self.regime.name, "-", "-", "", "-", "-", target, self.cannot
        scale = 1e3 if self.regime.unit == "ms" else 1.0
        low, high = self.spread
        return (
            self.regime.name,
            f"{scale * self.ours:.4g}",
            f"{scale * self.theirs:.4g}",
            self.regime.unit,
            f"{self.ratio:.3g}",
            f"{low:.3g}-{high:.3g}",
            target,
            "yes" if self.met else "no",
        )

    def as_json(self) -> dict[str, Any]:
        """The same for programs; times in seconds."""
        return {
            "name": self.regime.name,
            "against": self.regime.against,
            "compared": self.regime.described,
            "unit": "s" if self.regime.unit == "ms" else self.regime.unit,
            "ours": self.ours,
            "theirs": self.theirs,
            "ratio": self.ratio,
            "spread": list(self.spread),
            "runs": self.runs,
            "better": self.regime.better,
            "target": self.target,
            "met": self.met,
            "cannot": self.cannot,
        }


def run(regime: Regime, setup: Setup) -> Outcome:
    """Measure a regime as often as the setup asks for."""
    try:
        pairs = list(islice(regime.measure(setup), regime.runs or setup.scale.runs))
        target = regime.target(setup) if callable(regime.target) else regime.target
    except CannotRun as error:
        bound = float("nan") if callable(regime.target) else regime.target
        return Outcome(regime, bound, cannot=str(error))
    ours, theirs = zip(*pairs, strict=True)
    ratios = [a / b for a, b in pairs]
    low, high = (float(value) for value in np.percentile(ratios, (25, 75)))
    return Outcome(
        regime, target, median(ours), median(theirs), median(ratios), (low, high), len(pairs)
    )
