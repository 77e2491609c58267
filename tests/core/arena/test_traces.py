"""Which steps are worth a trace, and how many are kept."""

import pytest
from makers import LoadGrid, MakeEngine, prompts_of
from replays import SAMPLINGS, load, rows_of, turns_of

from kvactors.core.arena.compiled.compiler import CREDIT, EARNED, MOST_TRACES, WORTH, StepCompiler
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.models import tiny_model


def test_a_step_is_traced_once_it_was_taken_often_and_then_replayed() -> None:
    loaded = load(tiny_model())
    rows, turns = rows_of(loaded, 5, 9, worth=4), turns_of(2)
    # The first one is another: only then it is known that floats may be kept.
    rows.step(turns, ahead=False)

    counts = []
    for _ in range(6):
        rows.step(turns, ahead=False)
        counts.append((rows.steps.made, rows.steps.replayed))

    assert counts == [(0, 0), (0, 0), (0, 0), (1, 0), (1, 1), (1, 2)]


def test_a_trace_of_one_extent_does_not_serve_the_next() -> None:
    loaded = load(tiny_model())
    rows, turns = rows_of(loaded, 58), turns_of(1)

    for _ in range(12):
        rows.step(turns, ahead=False)

    # 58 to 64 keys, and 65 on; the first step of all shows that floats may be kept.
    assert rows.steps.made == 2


def test_the_traces_used_last_are_kept() -> None:
    model = tiny_model()
    rows, turns = rows_of(load(model), 5, 9), turns_of(2)
    rows.steps = StepCompiler(model, traced=True, most=2, worth=1)

    for sampling in SAMPLINGS[1:]:
        turns[0] = make_request("0", [], [1, 2, 3], sampling)
        rows.step(turns, ahead=False)
        rows.step(turns, ahead=False)

    assert rows.steps.made > 2
    assert len(rows.steps) == 2


def test_traces_are_made_only_while_replays_have_paid_for_those_before() -> None:
    model = tiny_model()
    rows, turns = rows_of(load(model), 5), turns_of(1)
    rows.steps = StepCompiler(model, traced=True, worth=3, credit=2)

    for top_k in range(1, 9):
        turns[0] = make_request("0", [], [1], Sampling(temperature=1.0, top_k=top_k))
        for _ in range(3):
            rows.step(turns, ahead=False)
    unpaid = rows.steps.made
    for _ in range(6):
        turns[0] = make_request("0", [], [1], Sampling(temperature=1.0, top_k=2))
        rows.step(turns, ahead=False)

    assert unpaid == 3
    assert rows.steps.replayed >= 3


def test_short_answers_do_not_keep_a_long_one_from_traces() -> None:
    loaded = load(tiny_model())
    steps = StepCompiler(loaded.model, traced=True)
    for answer in range(12):
        short = rows_of(loaded, 10 + 64 * answer)
        short.steps = steps
        for _ in range(WORTH + 1):
            short.step(turns_of(1), ahead=False)
    wasted, replayed = steps.made, steps.replayed
    long = rows_of(loaded, 30)
    long.steps = steps

    for _ in range(EARNED * WORTH * 3):
        long.step(turns_of(1), ahead=False)

    assert wasted > CREDIT
    assert steps.replayed - replayed > EARNED * WORTH


def test_rows_that_find_a_trace_learn_how_the_model_attends() -> None:
    loaded = load(tiny_model())
    first, turns = rows_of(loaded, 5), turns_of(1)
    for _ in range(3):
        first.step(turns, ahead=False)
    others = rows_of(loaded, 5)
    others.steps = first.steps

    for _ in range(3):
        others.step(turns, ahead=False)

    assert first.steps.replayed > 0
    assert [layer.known for layer in others.arena.layers] == [True] * len(others.arena.layers)


@pytest.mark.slow
def test_a_thousand_staggered_arrivals_make_few_traces(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    loaded = load_grid(num_hidden_layers=1)
    engine = make_engine(loaded)
    arrivals = [
        (number, make_request(f"{number}", [], prompt, Sampling(max_tokens=3 + number % 7)))
        for number, prompt in enumerate(prompts_of([3 + 5 * (n % 30) for n in range(1000)]))
    ]

    ends = run_engine(engine, arrivals)

    (steps,) = engine.memory.running.steps
    print(f"{steps.made} traces, {steps.replayed} replays")
    assert len(ends) == 1000
    assert steps.replayed > 0
    assert steps.made <= CREDIT + 1 + (steps.replayed + steps.eager / EARNED) / WORTH
    assert len(steps) <= MOST_TRACES
