"""What is in flight while others prefill: first tokens and last ones do not wait for a chunk."""

from typing import Any

import pytest
from makers import LoadGrid, MakeEngine, Ticks, prompts_of
from seeded import bug, seeded

from kvactors import Sampling
from kvactors.core.schedule.events import Finished, Progress
from kvactors.core.schedule.scheduler import Scheduler
from kvactors.core.testing.engines import make_request


@pytest.mark.parametrize(("most", "chunks"), [(1, 0), (2, 1)], ids=["first", "last"])
def test_a_token_that_a_turn_begins_or_ends_with_does_not_wait_for_the_chunk_of_another(
    load_grid: LoadGrid, make_engine: MakeEngine, most: int, chunks: int
) -> None:
    engine, (short, long) = make_engine(load_grid(), clock=Ticks()), prompts_of([40, 900])
    engine.submit(make_request("short", [], short, Sampling(max_tokens=most)))
    engine.submit(make_request("long", [], long, Sampling(max_tokens=1), serial=1))

    order = [event for _ in range(3 + chunks) for event in engine.step()]

    ended = next(n for n, event in enumerate(order) if isinstance(event, Finished))
    of_others = [event for event in order[:ended] if isinstance(event, Progress)][1:]
    assert [event.agent_id for event in of_others] == ["long"] * chunks


def test_a_step_that_was_only_launched_says_nothing_of_how_long_steps_take(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    told: list[float] = []

    @bug(Scheduler, "record_decode")
    def listened_to(true: Any) -> Any:
        def record(scheduler: Scheduler, seconds: float) -> None:
            told.append(seconds)
            true(scheduler, seconds)

        return record

    engine = make_engine(load_grid(), clock=Ticks())
    engine.submit(make_request("a", [], prompts_of([40])[0], Sampling(max_tokens=4)))
    with seeded(listened_to):
        while engine.busy:
            engine.step()

    assert [seconds > 0 for seconds in told] == [False, True, True, True, True]
