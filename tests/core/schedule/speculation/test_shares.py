"""What it costs to share a forward out among drafts."""

import builtins
from typing import Any

from seeded import bug, seeded

from kvactors.core.schedule.speculation.acceptance import Costs, Draft, share_out


def looked_through(rows: int) -> int:
    """Items of collections that are searched for their largest while `rows` drafts get a share."""
    looked = 0

    @bug(builtins, "max")
    def counted(true: Any) -> Any:
        def largest(*items: Any, **by: Any) -> Any:
            nonlocal looked
            looked += len(items[0]) if len(items) == 1 else len(items)
            return true(*items, **by)

        return largest

    drafts = [Draft([1] * 15, [0.99] * 15, "own") for _ in range(rows)]
    with seeded(counted):
        shares = share_out(drafts, rows, Costs(), least=0.0)
    assert all(shares)
    return looked


def test_to_share_out_among_four_times_as_many_looks_through_four_times_as_much() -> None:
    assert looked_through(64) == 4 * looked_through(16)
