"""One line of the performance table: what is measured, against what, and what it should be.

A regime has two sides. `run` asks them in turns, and lets the other one begin in every second
pair, so that a machine that slows down slows both. A ratio is the median of the ratios of these
pairs, its spread their quartiles. A target is a constant; it is met where the worse quartile meets
it. What is not a positive number was not measured, and meets nothing.
"""

import math
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np

from kvactors.bench.peer_process import PeerFailed
from kvactors.bench.report import Origin, origin
from kvactors.bench.setup import Setup
from kvactors.core.errors import InvalidConfig, KvactorsError

__all__ = [
    "ANYWHERE",
    "CPU_BUILD",
    "FLOAT_THERE",
    "NOTHING_DECODED",
    "CannotRun",
    "Outcome",
    "Regime",
    "Side",
    "Sides",
    "in_turn",
    "matching",
    "run",
]

NAN = float("nan")
Where = Literal["any machine", "x86 CPU build"]
CPU_BUILD: Where = "x86 CPU build"
ANYWHERE: Where = "any machine"
# Why the tokens of two sides may differ.
FLOAT_THERE = "4 bits here, floats there"
NOTHING_DECODED = "nothing is decoded"


class CannotRun(Exception):
    """Why a regime cannot be measured here: what the peer lacks, or the machine."""


class Side(NamedTuple):
    """What a side gave: a value in the regime's unit, and the tokens that it decoded."""

    value: float
    tokens: Sequence[int] = ()


Measure = Callable[[], Side]
Sides = tuple[Measure, Measure]


def in_turn(ask: Callable[[int], Side]) -> Measure:
    """Asks of another seed each time, the same ones for both sides: nothing is said twice."""
    seeds = iter(range(1000))
    return lambda: ask(next(seeds))


@dataclass(frozen=True, slots=True)
class Regime:
    """A comparison. `measure` gives both sides, ours first, in `unit`, ready to be asked."""

    name: str
    against: str
    target: float
    measure: Callable[[Setup], AbstractContextManager[Sides]]
    better: Literal["lower", "higher"] = "lower"
    unit: str = "ms"
    """"ms": what is given are seconds. Anything else is printed as it is."""
    runs: int | None = None
    """Fewer than usual, where a measurement cannot vary."""
    holds_on: Where = CPU_BUILD
    """Where the target was seen to be right."""
    gpu: float | None = None
    """The target on a GPU, where it differs."""
    differ: str = ""
    """Why both sides may decode different tokens; else they must be the same."""

    @property
    def described(self) -> str:
        """Exactly what is compared: the docstring of `measure`."""
        return " ".join((self.measure.__doc__ or "").split())

    def target_here(self) -> float:
        """The target for the device that MLX computes on. Imports MLX."""
        from kvactors.core.quant.device import on_cpu

        return self.target if self.gpu is None or on_cpu() else self.gpu


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a regime gave: medians, the ratio with its quartiles, where and when; or why there is
    none (`cannot`; `failed`, where that is an error), or why it counts for nothing (`invalid`)."""

    regime: Regime
    target: float
    origin: Origin
    pairs: tuple[tuple[float, float], ...] = ()
    order: tuple[str, ...] = ()
    """Which side began each pair."""
    cannot: str = ""
    invalid: str = ""
    failed: bool = False

    @property
    def _sound(self) -> bool:
        return not (self.cannot or self.invalid)

    def _side(self, index: int) -> float:
        return median(pair[index] for pair in self.pairs) if self._sound else NAN

    @property
    def ours(self) -> float:
        """The median of our side."""
        return self._side(0)

    @property
    def theirs(self) -> float:
        """The median of the other side."""
        return self._side(1)

    @property
    def _ratios(self) -> list[float]:
        return [a / b for a, b in self.pairs] if self._sound else [NAN]

    @property
    def ratio(self) -> float:
        """The median of the ratios of the pairs."""
        return median(self._ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles of the ratios of the pairs."""
        low, high = np.percentile(self._ratios, (25, 75))
        return float(low), float(high)

    def _meets(self, ratio: float) -> bool | None:
        if self.cannot:
            return None
        return ratio >= self.target if self.regime.better == "higher" else ratio <= self.target

    @property
    def median_meets(self) -> bool | None:
        """Whether the median reaches the target: by itself not enough."""
        return self._meets(self.ratio)

    @property
    def met(self) -> bool | None:
        """Whether the worse quartile reaches the target; None if it could not be measured."""
        return self._meets(self.spread[0 if self.regime.better == "higher" else 1])

    @property
    def verdict(self) -> str:
        """The same in words."""
        if not self._sound:
            return self.cannot or f"invalid: {self.invalid}"
        return "yes" if self.met else "median only" if self.median_meets else "no"

    def row(self) -> tuple[str, ...]:
        """Cells of the table."""
        sign = {"lower": "<=", "higher": ">="}[self.regime.better]
        target = f"{sign} {self.target:.4g}"
        if not self._sound:
            return self.regime.name, "-", "-", "", "-", "-", target, self.verdict
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
            self.verdict,
        )

    def as_json(self) -> dict[str, Any]:
        """The same for programs; times in seconds, None for what there is not."""
        return {
            "name": self.regime.name,
            "against": self.regime.against,
            "compared": self.regime.described,
            "unit": "s" if self.regime.unit == "ms" else self.regime.unit,
            "ours": _finite(self.ours),
            "theirs": _finite(self.theirs),
            "ratio": _finite(self.ratio),
            "spread": [_finite(value) for value in self.spread],
            "runs": len(self.pairs),
            "order": list(self.order),
            "better": self.regime.better,
            "target": self.target,
            "target_gpu": self.regime.gpu,
            "holds_on": self.regime.holds_on,
            "median_meets": self.median_meets,
            "met": self.met,
            "verdict": self.verdict,
            "tokens": f"may differ: {self.regime.differ}" if self.regime.differ else "the same",
            "cannot": self.cannot,
            "invalid": self.invalid,
            **self.origin.as_json(),
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def run(regime: Regime, setup: Setup) -> Outcome:
    """Measure a regime as often as the setup asks for. One that fails, or its peer, says of what:
    others may be measured."""
    begun, target = origin(), regime.target_here()
    pairs: list[tuple[float, float]] = []
    order: list[str] = []
    invalid = ""
    try:
        with regime.measure(setup) as sides:
            for number in range(regime.runs or setup.scale.runs):
                order.append(("ours", "theirs")[number % 2])
                ours, theirs = _pair(sides, theirs_first=bool(number % 2))
                pairs.append((float(ours.value), float(theirs.value)))
                invalid = invalid or _wrong(regime, ours, theirs)
    except CannotRun as error:
        return Outcome(regime, target, begun.ended(), cannot=str(error))
    except (PeerFailed, KvactorsError) as error:
        # Of a peer's own traceback.
        last = str(error).strip().split("\n")[-1]
        said = f"{type(error).__name__}: {last}"
        return Outcome(regime, target, begun.ended(), cannot=said, failed=True)
    return Outcome(regime, target, begun.ended(), tuple(pairs), tuple(order), invalid=invalid)


def _pair(sides: Sides, *, theirs_first: bool) -> tuple[Side, Side]:
    ours, theirs = sides
    if theirs_first:
        other = theirs()
        return ours(), other
    return ours(), theirs()


def _wrong(regime: Regime, ours: Side, theirs: Side) -> str:
    """Why a pair counts for nothing; empty if it counts."""
    for whose, side in (("ours", ours), ("theirs", theirs)):
        if not (math.isfinite(side.value) and side.value > 0):
            return f"{whose} is {side.value:.4g}, not a positive number"
    if regime.differ:
        return ""
    if not ours.tokens:
        return "no tokens were compared"
    return "" if list(ours.tokens) == list(theirs.tokens) else "the tokens of both sides differ"


def matching(names: Sequence[str], only: Sequence[str], what: str) -> list[str]:
    """Those of `names` in which one of `only` stands or, where it stands in none, which it matches
    as a regular expression; all where there is none. Raises InvalidConfig, with `what` they are the
    names of, for one that is neither in a name nor a pattern of any."""
    chosen = [_matching(names, each, what) for each in only]
    return [name for name in names if not only or any(name in some for some in chosen)]


def _matching(names: Sequence[str], asked: str, what: str) -> list[str]:
    try:
        found = [name for name in names if asked in name] or [
            name for name in names if re.search(asked, name)
        ]
    except (re.error, OverflowError) as error:
        raise InvalidConfig(f"--only: {asked!r} is no regular expression: {error}") from error
    if not found:
        raise InvalidConfig(f"no {what} is called {asked}: there are {', '.join(names)}")
    return found
