"""Intervals in which 95 % of such measurements would lie, by methods that have names. Pure: any
thread."""

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import Any

import numpy as np

__all__ = ["Interval", "bootstrap", "wilson"]

Interval = tuple[float, float]
# Of a normal distribution, within so many deviations lie 95 %.
DEVIATIONS = 1.959964
RESAMPLED = 10_000
# Values drawn at once: the resamples of many runs would be hundreds of megabytes.
DRAWN = 100_000


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
    low, high = np.percentile(np.concatenate(list(_means(values))), (2.5, 97.5))
    return float(low), float(high)


def _means(values: Sequence[float]) -> Iterator[Any]:
    """The means of the resamples, of some at once."""
    rng = np.random.default_rng(0)
    some = max(1, DRAWN // len(values))
    for done in range(0, RESAMPLED, some):
        size = (min(some, RESAMPLED - done), len(values))
        yield rng.choice(np.asarray(values, dtype=float), size).mean(axis=1)
