"""A few lines of the table at small size: that it runs, and about how fast. No target holds for
so little, so none is met or missed here; a figure that is no positive number is invalid."""

import math

from kvactors.bench.check.finding import Answer
from kvactors.bench.setup import Scale, Setup
from kvactors.bench.table.regime import Regime, run
from kvactors.bench.table.suite import REGIMES

__all__ = ["LINES", "SMALL", "figure", "lines"]

LINES = (
    "prefill-4k",
    "decode-one-4k",
    "decode-ragged",
    "kv-bytes-per-token",
    "cold/warm-16k",
)
SMALL = Scale(runs=2, shrink=16, fewer=4, decoded=16)


def lines() -> list[Regime]:
    """The regimes of these lines."""
    return [regime for regime in REGIMES if regime.name in LINES]


def figure(regime: Regime, setup: Setup) -> Answer:
    """What a `regime` gave: ours, theirs and their ratio."""
    outcome = run(regime, setup)
    if outcome.cannot:
        return Answer("skipped", outcome.cannot)
    measured = {"ours": outcome.ours, "theirs": outcome.theirs, "ratio": outcome.ratio}
    _, ours, theirs, unit, ratio, *_ = outcome.row()
    said = f"{ours} {unit}, {regime.against}: {theirs} {unit}, ratio {ratio}"
    if not all(math.isfinite(value) and value > 0 for value in measured.values()):
        return Answer("violated", f"no measurement: {said}", measured)
    return Answer("measured", said, measured)
