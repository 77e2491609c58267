"""A few lines of the table at small size: that it runs, and about how fast. No target holds for
so little, so none is met or missed here; a figure that is no positive number is invalid."""

from kvactors.bench.check.finding import Answer
from kvactors.bench.regime import Regime, run
from kvactors.bench.setup import Scale, Setup
from kvactors.bench.table.suite import REGIMES

__all__ = ["LINES", "SMALL", "figure", "line"]

# The shortest first.
LINES = ("kv-bytes-per-token", "decode-one-4k", "prefill-4k", "decode-ragged", "cold/warm-16k")
SMALL = Scale(runs=2, shrink=16, fewer=4, decoded=16)


def line(name: str) -> Regime:
    """The regime of this name."""
    return next(regime for regime in REGIMES if regime.name == name)


def figure(regime: Regime, setup: Setup) -> Answer:
    """What a `regime` gave: ours, theirs and their ratio."""
    outcome = run(regime, setup)
    if outcome.cannot:
        return Answer("unmeasured" if outcome.failed else "skipped", outcome.cannot)
    if outcome.invalid:
        return Answer("unmeasured", outcome.verdict)
    measured = {"ours": outcome.ours, "theirs": outcome.theirs, "ratio": outcome.ratio}
    _, ours, theirs, unit, ratio, *_ = outcome.row()
    said = f"{ours} {unit}, {regime.against}: {theirs} {unit}, ratio {ratio}"
    return Answer("measured", said, measured)
