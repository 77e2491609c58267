"""A tree of candidates, and a single sequence: what each token sees, against sets."""

import pytest
from cache_machines import Trees
from hypothesis import settings

from kvactors.core.cache.family.contiguous import ContiguousBookkeeping
from kvactors.core.cache.family.step_plan import StepPlan
from kvactors.core.cache.family.tree import TreeBookkeeping
from kvactors.core.errors import CacheFull, InvalidStep

TestTrees = Trees.TestCase
TestTrees.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_the_example_of_four_nodes() -> None:
    cache, moved = TreeBookkeeping(11), []
    cache.on_commit(lambda base, cells: moved.append((base, list(cells))))
    cache.plan(range(7))
    cache.propose([-1, 0, 0, 1])

    plan = cache.plan([7, 8, 8, 9])
    cache.commit([0, 1, 3])

    trunk = 0b1111111
    assert plan.cells == (7, 8, 9, 10)
    assert plan.rows == tuple(trunk | line << 7 for line in (0b0001, 0b0011, 0b0101, 0b1011))
    assert moved == [(7, [7, 8, 10])]
    assert (cache.length, cache.pending, cache.can_extend(1), cache.can_extend(2)) == (
        10,
        0,
        True,
        False,
    )


def test_what_is_proposed_takes_room() -> None:
    cache = TreeBookkeeping(4)
    cache.plan([0])
    cache.propose([-1, 0])

    assert cache.can_extend(1)
    assert not cache.can_extend(2)
    cache.plan([1, 2])
    with pytest.raises(CacheFull, match="needs 2 cells: 3 of 4 are held, 1 free"):
        cache.propose([1, 1])


def test_a_chain_needs_no_mask() -> None:
    cache = TreeBookkeeping(8)
    cache.plan(range(3))
    cache.propose([-1, 0, 1])

    assert cache.plan([3, 4, 5]) == StepPlan(range(3, 6), 6)


@pytest.mark.parametrize("verb", ["propose", "commit", "clear"])
def test_a_plan_is_not_kept_for_another_step_at_the_same_positions(verb: str) -> None:
    cache = TreeBookkeeping(8)
    cache.plan(range(2))
    cache.propose([-1, -1])
    cache.plan([2, 2])
    cache.propose([0])
    before = cache.plan([3])

    if verb == "propose":
        cache.propose([1])
    elif verb == "commit":
        cache.commit([1])
    else:
        cache.clear()
        cache.plan(range(3))
    after = cache.plan([3])

    assert before == StepPlan((4,), 5, (0b10111,))
    assert after == (
        StepPlan((5,), 6, (0b101011,)) if verb == "propose" else StepPlan(range(3, 4), 4)
    )
    assert cache.length == (2 if verb == "propose" else 4)


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([], "at least one node"),
        ([0], "node 0 is a node before it, or -1 for a root: 0"),
        ([-1, 1], "node 1 is a node before it, or -1 for a root: 1"),
        ([-2], "-1 for a root: -2"),
        ([-1, 0.5], "-1 for a root: 0.5"),
    ],
)
def test_what_is_no_tree_is_refused(parents: list[int], message: str) -> None:
    cache = TreeBookkeeping(8)

    with pytest.raises(InvalidStep, match=message):
        cache.propose(parents)

    assert cache.pending == 0


def test_nodes_run_once_and_where_they_stand() -> None:
    cache = TreeBookkeeping(8)
    cache.propose([-1, 0])

    with pytest.raises(InvalidStep, match=r"stand at \[0, 1\], not at \[0, 0\]"):
        cache.plan([0, 0])
    cache.plan([0, 1])
    cache.end_step()
    with pytest.raises(InvalidStep, match="all 2 nodes ran"):
        cache.plan([0, 1])


def test_a_single_sequence_appends_and_is_rewound() -> None:
    cache = ContiguousBookkeeping(8)

    prefill = cache.plan(range(5))
    assert cache.plan(range(5)) is prefill
    decode = cache.plan([5])
    cache.rewind(2)
    again = cache.plan([2])

    assert (prefill, decode, again) == (
        StepPlan(range(5), 5),
        StepPlan(range(5, 6), 6),
        StepPlan(range(2, 3), 3),
    )
    assert (cache.length, cache.can_extend(5), cache.can_extend(6)) == (3, True, False)


@pytest.mark.parametrize("verb", ["rewind", "clear"])
def test_a_single_sequence_keeps_no_plan_for_another_step_at_the_same_positions(verb: str) -> None:
    cache = ContiguousBookkeeping(8)
    first = cache.plan(range(3))

    if verb == "rewind":
        cache.rewind(0)
    else:
        cache.clear()
    again = cache.plan(range(3))

    assert again == first
    assert again is not first
    assert cache.length == 3


def test_a_single_sequence_refuses_holes_and_what_has_no_room() -> None:
    cache = ContiguousBookkeeping(4)
    cache.plan([0, 1])
    cache.end_step()

    with pytest.raises(InvalidStep, match="behind 2 tokens is at position 2, not 1"):
        cache.plan([1])
    with pytest.raises(InvalidStep, match="token 1 of a step behind 2 tokens is at position 3"):
        cache.plan([2, 4])
    with pytest.raises(CacheFull, match="needs 3 cells: 2 of 4 are held, 2 free"):
        cache.plan([2, 3, 4])
    with pytest.raises(InvalidStep, match="2 tokens held, it cannot grow: 3"):
        cache.rewind(3)
    cache.plan([2])
    cache.take_back()
    assert cache.length == 2
    cache.clear()
    assert cache.length == 0
