"""Intervals in which 95 % of such measurements would lie, by methods that have names. Pure: any
thread."""

from collections.abc import Sequence
from math import sqrt

import numpy as np

__all__ = ["Interval", "bootstrap", "wilson"]

Interval = tuple[float, float]
# Of a normal distribution, within so many deviations lie 95 %.
DEVIATIONS = 1.959964
RESAMPLED = 10_000


def wilson(right: int, of: int) -> Interval:
    """The share behind `right` out of `of` answers, by Wilson's score interval: it stays within 0
    and 1, and has a width where all were right."""
    if of < 1 or not 0 <= right <= of:
        raise ValueError(f"{right} of {of} is no share")
    squared = DEVIATIONS**2 / of
    middle = right / of + squared / 2
    half = DEVIATIONS * sqrt(right * (of - right) / of**3 + squared / (4 * of))
    return (max(0.0, (middle - half) / (1 + squared)), min(1.0, (middle + half) / (1 + squared)))


def bootstrap(values: Sequence[float]) -> Interval | None:
    """The mean behind `values`, one of each run, by the percentiles of the means of resamples. The
    same values give the same interval. None of one value, which says nothing of others."""
    if len(values) < 2:
        return None
    rng = np.random.default_rng(0)
    drawn = rng.choice(np.asarray(values, dtype=float), (RESAMPLED, len(values)))
    low, high = np.percentile(drawn.mean(axis=1), (2.5, 97.5))
    return float(low), float(high)
