"""Sequences over cells: what each token sees, and which cells are free, against sets."""

from typing import Any

import pytest
from cache_machines import Sequences
from hypothesis import settings

from kvactors.core.cache.family.cells import cells_of
from kvactors.core.cache.family.sequences import SeqBookkeeping
from kvactors.core.cache.family.step_plan import StepPlan
from kvactors.core.errors import InvalidStep

TestSequences = Sequences.TestCase
TestSequences.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def stepped(cache: SeqBookkeeping, *tokens: tuple[int, int]) -> StepPlan:
    """A step of (sequence, position) tokens."""
    cache.begin_step([sequence for sequence, _ in tokens])
    plan = cache.plan([position for _, position in tokens])
    cache.end_step()
    return plan


def test_one_sequence_needs_no_mask() -> None:
    cache = SeqBookkeeping(8)

    prefill = stepped(cache, *((0, position) for position in range(5)))
    decode = stepped(cache, (0, 5))

    assert prefill == StepPlan(range(5), 5)
    assert decode == StepPlan(range(5, 6), 6)


def test_branches_see_the_trunk_and_not_each_other() -> None:
    cache = SeqBookkeeping(8)
    stepped(cache, (0, 0), (0, 1))
    cache.seq_cp(0, 1)
    cache.seq_cp(0, 2)

    plan = stepped(cache, (1, 2), (2, 2), (2, 3))

    assert plan == StepPlan((2, 3, 4), 5, (0b00111, 0b01011, 0b11011))
    assert cache.owners(0) == {0, 1, 2}


def test_what_one_lets_go_of_is_free_when_nobody_holds_it() -> None:
    cache = SeqBookkeeping(4)
    stepped(cache, (0, 0), (0, 1), (0, 2))
    cache.seq_cp(0, 1, 0, 2)

    cache.seq_rm(0)
    one_left = stepped(cache, (2, 0), (2, 1))
    cache.seq_rm(1)

    assert list(one_left.cells) == [2, 3]
    assert [list(stepped(cache, (3, 0)).cells), cache.used] == [[0], 3]


def test_a_hundred_sequences_share_a_trunk() -> None:
    cache = SeqBookkeeping(110)
    stepped(cache, *((0, position) for position in range(10)))
    for branch in range(1, 101):
        cache.seq_cp(0, branch)

    plan = stepped(cache, *((branch, 10) for branch in range(1, 101)))
    cache.seq_keep(70)

    assert [cells_of(plan.row(n)) for n in (0, 99)] == [[*range(11)], [*range(10), 109]]
    assert (cache.used, cache.seq_len(70)) == (11, 11)
    assert cache.owners(79) == {70}
    cache.check()


def test_a_window_that_lost_its_beginning_goes_on_at_its_position() -> None:
    cache = SeqBookkeeping(4)
    stepped(cache, *((1, position) for position in range(4)))

    cache.seq_rm(1, 0, 2)
    plan = stepped(cache, (1, cache.next_position(1)))

    assert (cache.seq_len(1), cache.next_position(1)) == (3, 5)
    assert plan == StepPlan((0,), 4, (0b1101,))


def test_freed_cells_are_taken_from_the_lowest_on_and_reads_become_shorter() -> None:
    cache = SeqBookkeeping(100)
    stepped(cache, *((0, position) for position in range(20)))
    stepped(cache, *((1, position) for position in range(60)))

    cache.seq_rm(1, 5)
    cache.seq_rm(0, 0, 2)
    plan = stepped(cache, (1, 5), (1, 6), (1, 7))

    assert list(plan.cells) == [0, 1, 25]
    assert (plan.read, cache.high_water) == (26, 26)


VERBS = {
    "begin_step": lambda cache: cache.begin_step([0]),
    "seq_cp": lambda cache: cache.seq_cp(0, 7),
    "seq_rm": lambda cache: cache.seq_rm(0, 1, 2),
    "seq_keep": lambda cache: cache.seq_keep(0),
    "clear": lambda cache: cache.clear(),
    "end_step": lambda cache: cache.end_step(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_plan_is_for_one_step_and_each_verb_makes_it_void(verb: str) -> None:
    cache = SeqBookkeeping(16)
    stepped(cache, (0, 0), (0, 1), (1, 0))
    cache.begin_step([0])
    cache.plan([2])

    VERBS[verb](cache)

    with pytest.raises(InvalidStep, match=r"begin_step says so|position 2 twice"):
        cache.plan([2])


def test_a_step_that_failed_may_be_tried_again() -> None:
    cache = SeqBookkeeping(4)
    stepped(cache, (0, 0))
    cache.begin_step([0, 1])
    first = cache.plan([1, 0])

    cache.take_back()

    assert cache.used == 1
    assert cache.plan([1, 0]) == first


@pytest.mark.parametrize(
    ("sequences", "positions", "message"),
    [
        ([0], [1, 2], "for 1 tokens: the step has 2"),
        ([0, 0], [1, 1], "position 1 twice"),
        ([0], [-1], "a position is a whole number from 0 on, not -1"),
        ([-3], [1], "a sequence is a whole number from 0 on, not -3"),
        ([0], [1.5], "a position is a whole number from 0 on, not 1.5"),
        ([], [], "at least one token"),
    ],
)
def test_what_is_no_step_is_refused_and_changes_nothing(
    sequences: list[int], positions: list[int], message: str
) -> None:
    cache = SeqBookkeeping(8)
    stepped(cache, (0, 0))

    def step() -> None:
        cache.begin_step(sequences)
        cache.plan(positions)

    with pytest.raises(InvalidStep, match=message):
        step()

    assert cache.used == 1
    cache.check()


@pytest.mark.parametrize(("start", "end"), [(0, -1), (-1, None), (1, 2.5)])
def test_what_is_no_range_of_positions_is_refused_and_changes_nothing(start: int, end: Any) -> None:
    cache = SeqBookkeeping(8)
    stepped(cache, (0, 0), (0, 1), (0, 2))

    with pytest.raises(InvalidStep, match="a position, or None for the end, is a whole number"):
        cache.seq_cp(0, 1, start, end)
    with pytest.raises(InvalidStep, match="a position, or None for the end, is a whole number"):
        cache.seq_rm(0, start, end)

    assert (cache.seq_len(0), cache.seq_len(1)) == (3, 0)
    cache.check()


def test_a_step_that_nobody_declared_is_refused() -> None:
    with pytest.raises(InvalidStep, match="begin_step"):
        SeqBookkeeping(8).plan([0])


@pytest.mark.parametrize("capacity", [0, -1, 2.5, "8"])
def test_a_capacity_that_is_no_number_of_cells_is_refused(capacity: int) -> None:
    with pytest.raises(InvalidStep, match="whole number of cells from 1 on"):
        SeqBookkeeping(capacity)
