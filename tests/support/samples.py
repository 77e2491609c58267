"""Which cases of many a run takes: others each day, so that in time all of them are met. Tests that
are marked slow take turns: each has one day of the week.

`KVACTORS_FULL=1` takes all of them at once. The day is in the header of the run;
`KVACTORS_DAY=2026-11-23` repeats it.
"""

import os
import zlib
from collections.abc import Iterable
from datetime import UTC, date, datetime
from random import Random
from typing import TypeVar

__all__ = ["DAY", "FULL", "TURNS", "has_turn", "sample_of"]

_Case = TypeVar("_Case")

FULL = bool(os.environ.get("KVACTORS_FULL"))
# Set, so that the workers of a run that goes on after midnight agree.
DAY = os.environ.setdefault("KVACTORS_DAY", datetime.now(UTC).date().isoformat())
TURNS = 7


def has_turn(test: str) -> bool:
    """Whether the slow test of this id is one of this day's."""
    return FULL or zlib.crc32(test.encode()) % TURNS == date.fromisoformat(DAY).toordinal() % TURNS


def sample_of(cases: Iterable[_Case], count: int, what: str) -> list[_Case]:
    """`count` of the `cases` that the day draws for `what`, in their order, or all of them."""
    every = list(cases)
    if FULL or count >= len(every):
        return every
    chosen = Random(f"{DAY} {what}").sample(range(len(every)), count)
    return [every[index] for index in sorted(chosen)]
