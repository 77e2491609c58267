"""What is remembered and what it costs, against what was counted by hand; intervals against
published ones."""

import tracemalloc

import numpy as np
import pytest
from runs import make_heard, make_turn, probe

from kvactors.actors.scenarios.journal.records import Failure, Metric, Turn
from kvactors.actors.scenarios.results.intervals import bootstrap, wilson
from kvactors.actors.scenarios.results.measure import measure

# Ann is asked twice of the phase before and four times of two phases before.
PROBES = (
    probe(1, right=True, phase="second", about="first", distance=1),
    probe(2, right=False, phase="second", about="first", distance=1),
    probe(3, right=True, phase="third", about="first", distance=2, prompt="Who?"),
    probe(4, right=True, phase="third", about="first", distance=2, prompt="Who?"),
    probe(5, right=True, phase="third", about="first", distance=2, agent="bob"),
    probe(6, right=False, phase="third", about="first", distance=2, agent="bob"),
)


def found(
    turns: tuple[Turn, ...], name: str, failures: tuple[Failure, ...] = ()
) -> dict[tuple[object, ...], tuple[float, int]]:
    """Value and count of a metric, by what it is of."""
    metrics = [metric for metric in measure(turns, (), failures) if metric.name == name]
    return {(m.agent, m.phase, m.branch, m.distance): (m.value, m.count) for m in metrics}


def test_recall_is_by_distance_phase_and_agent() -> None:
    assert found(PROBES, "recall") == {
        (None, None, None, None): (4 / 6, 6),
        (None, "second", None, None): (0.5, 2),
        (None, "third", None, None): (0.75, 4),
        ("ann", None, None, None): (0.75, 4),
        ("bob", None, None, None): (0.5, 2),
        (None, None, None, 1): (0.5, 2),
        (None, None, None, 2): (0.75, 4),
        (None, "second", None, 1): (0.5, 2),
        (None, "third", None, 2): (0.75, 4),
    }


def test_what_was_never_told_counts_as_refused_and_not_as_recalled() -> None:
    never = (probe(7, right=True, expected=None), probe(8, right=False, expected=None))

    assert found((*PROBES, *never), "recall") == found(PROBES, "recall")
    assert found(never, "refusal")[None, None, None, None] == (0.5, 2)
    assert found(PROBES, "refusal") == {}


def test_who_failed_at_a_probe_has_not_recalled_and_not_refused() -> None:
    where = ("bob", "third", 1, "", "ContextExceeded", "full", 0)
    full = Failure(7, *where, expected="4711", right=False, about="first", distance=2)
    never, no_probe = Failure(8, *where, right=False), Failure(9, *where)

    recall = found(PROBES, "recall", (full, never, no_probe))

    assert recall[None, None, None, None] == (4 / 7, 7)
    assert recall[None, None, None, 2] == (3 / 5, 5)
    assert recall["bob", None, None, None] == (1 / 3, 3)
    assert found((), "refusal", (never,))[None, None, None, None] == (0.0, 1)


def test_a_probe_that_expects_nothing_is_no_recall() -> None:
    assert found((make_turn(1, verb="probe"),), "recall") == {}


def test_branches_are_told_apart_where_there_are_any() -> None:
    forked = (*PROBES, probe(9, right=False, branch="left"))

    shares = found(forked, "recall")

    assert shares[None, None, "", None] == (4 / 6, 6)
    assert shares[None, None, "left", None] == (0.0, 1)


def test_what_is_told_of_one_branch_alone_is_told_to_be_of_that_one() -> None:
    shares = found((probe(1, right=True, branch="left"),), "recall")

    assert shares[None, None, "left", None] == (1.0, 1)


def test_what_branches_cost_is_told_apart() -> None:
    turns = (make_turn(1, generated_tokens=5), make_turn(2, branch="left", generated_tokens=7))

    costs = found(turns, "tokens_generated")

    assert costs == {
        (None, None, None, None): (12, 2),
        ("ann", "first", None, None): (12, 2),
        (None, None, "", None): (5, 1),
        (None, None, "left", None): (7, 1),
    }


@pytest.mark.parametrize(
    ("answers", "same"),
    [
        (("It is that.", "it is  that."), (1.0, 1)),
        (("That.", "This."), (0.0, 1)),
        # The third is compared with the second.
        (("That.", "This.", "This."), (0.5, 2)),
    ],
)
def test_consistent_is_who_answers_as_before(
    answers: tuple[str, ...], same: tuple[float, int]
) -> None:
    turns = tuple(make_turn(step, answer=answer) for step, answer in enumerate(answers))

    assert found(turns, "consistency")[None, None, None, None] == same


def test_a_branch_is_compared_with_what_was_answered_before_it_and_not_with_its_sister() -> None:
    turns = (
        make_turn(1, answer="That."),
        make_turn(2, answer="This.", branch="left"),
        make_turn(3, answer="That.", branch="right"),
        make_turn(4, answer="This.", branch="left/again"),
    )

    assert found(turns, "consistency")[None, None, None, None] == (2 / 3, 3)


def test_other_agents_other_prompts_and_what_is_said_are_not_compared() -> None:
    turns = (
        make_turn(1, answer="That."),
        make_turn(2, answer="This.", agent="bob"),
        make_turn(3, answer="This.", prompt="Who?"),
        make_turn(4, answer="Well.", verb="say", prompt="Say."),
        make_turn(5, answer="No.", verb="say", prompt="Say."),
    )

    assert found(turns, "consistency") == {}


def test_cost_is_of_each_agent_and_phase_and_hearing_is_prefill() -> None:
    turns = (
        make_turn(1, "ann", prefilled_tokens=100, reused_tokens=0, generated_tokens=5),
        make_turn(2, "bob", prefilled_tokens=20, reused_tokens=300, generated_tokens=7),
        make_turn(3, "bob", "second", prefilled_tokens=1, reused_tokens=2, generated_tokens=3),
    )
    heard = (make_heard(4, 1, "bob", prefilled_tokens=11),)

    costs = [metric for metric in measure(turns, heard, ()) if metric.name.startswith("tokens_")]

    assert costs == [
        Metric("tokens_prefilled", 132, 4),
        Metric("tokens_prefilled", 100, 1, "ann", "first"),
        Metric("tokens_prefilled", 31, 2, "bob", "first"),
        Metric("tokens_prefilled", 1, 1, "bob", "second"),
        Metric("tokens_reused", 302, 3),
        Metric("tokens_reused", 0, 1, "ann", "first"),
        Metric("tokens_reused", 300, 1, "bob", "first"),
        Metric("tokens_reused", 2, 1, "bob", "second"),
        Metric("tokens_generated", 15, 3),
        Metric("tokens_generated", 5, 1, "ann", "first"),
        Metric("tokens_generated", 7, 1, "bob", "first"),
        Metric("tokens_generated", 3, 1, "bob", "second"),
    ]


def test_nothing_was_measured_of_nothing() -> None:
    assert measure((), (), ()) == ()


@pytest.mark.parametrize(
    ("right", "of", "low", "high"),
    # Newcombe, 1998, table I: the score method without continuity correction.
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval_is_the_published_one(
    right: int, of: int, low: float, high: float
) -> None:
    assert wilson(right, of) == pytest.approx((low, high), abs=5e-5)


def test_all_right_out_of_few_is_not_certainty() -> None:
    low, high = wilson(3, 3)

    assert low == pytest.approx(0.4385, abs=1e-4)
    assert high == 1.0


@pytest.mark.parametrize(("right", "of"), [(0, 0), (3, 2), (-1, 4)])
def test_what_is_no_share_has_no_interval(right: int, of: int) -> None:
    with pytest.raises(ValueError, match=f"{right} of {of} is no share"):
        wilson(right, of)


def test_the_bootstrap_is_that_of_the_mean_and_the_same_each_time() -> None:
    values = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]

    interval = bootstrap(values)

    # Of the mean of n values the deviation is theirs / sqrt(n): 3.5 +- 1.96 * 2.291 / 2.828.
    assert interval == pytest.approx((1.91, 5.09), abs=0.1)
    assert interval == bootstrap(values)


def test_the_bootstrap_of_many_runs_is_drawn_in_pieces_and_is_the_same() -> None:
    values = [float(value % 7) for value in range(1001)]
    drawn = np.random.default_rng(0).choice(np.array(values), (10_000, 1001)).mean(axis=1)

    tracemalloc.start()
    interval = bootstrap(values)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert interval == tuple(np.percentile(drawn, (2.5, 97.5)))
    assert most < 5_000_000


def test_one_run_says_nothing_of_others() -> None:
    assert bootstrap([0.5]) is None
    assert bootstrap([0.5, 0.5]) == (0.5, 0.5)
