"""What is traced, when, and what becomes of it."""

import weakref
from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import pytest
from children import run_child
from makers import LoadGrid, MakeEngine, prompts_of
from replays import SAMPLINGS, Rows, Twins

from kvactors.core.arena.compiled.compiler import CREDIT, EARNED, MOST_TRACES, WORTH, StepCompiler
from kvactors.core.model.load import LoadedModel, load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.families import build
from kvactors.core.testing.models import PlainTokenizer, tiny_model


def load(model: nn.Module) -> LoadedModel:
    return load_model(lambda: (model, PlainTokenizer()), ModelOptions(name="m"))


def turns_of(count: int) -> dict[int, Request]:
    return {name: make_request(f"{name}", [], [name + 1], Sampling()) for name in range(count)}


def rows_of(loaded: LoadedModel, *lengths: int, worth: float = 1) -> Rows:
    rows = Rows(loaded, worth, floats=True)
    for name, prompt in enumerate(prompts_of(lengths)):
        rows.join(name, prompt)
    return rows


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


class Told(nn.Module):  # type: ignore[misc]
    """What a layer ends with, and something else when it is told to."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.act: Callable[[mx.array], object] = lambda x: None

    def __call__(self, x: mx.array) -> mx.array:
        self.act(x)
        out: mx.array = self.inner(x)
        return out


def told() -> tuple[LoadedModel, Told]:
    """A model of two layers, and what ends the first of them."""
    model = tiny_model()
    loaded = load(model)
    model.layers[0].mlp = inner = Told(model.layers[0].mlp)
    return loaded, inner


def test_a_step_that_cannot_be_traced_is_taken_eagerly_and_not_tried_again() -> None:
    loaded, first = told()
    twins = Twins(loaded, "evaluates", floats=True)
    first.act = mx.eval

    twins.live(3)

    kinds = twins.replayed.steps.made
    for _ in range(5):
        twins.step()
    assert twins.replayed.steps.replayed == 0
    assert twins.replayed.steps.made <= kinds + 1
    assert twins.replayed.held() == twins.eager.held()


def test_an_error_leaves_bytes_and_lengths_as_they_were() -> None:
    loaded, first = told()
    turns = turns_of(2)
    rows, calm = (rows_of(loaded, 20, 30, worth=3) for _ in range(2))
    for side in (rows, calm):
        side.step(turns, ahead=False)
    held = rows.held()

    def fail(_x: mx.array) -> None:
        raise RuntimeError("in the middle of a step")

    first.act = fail
    # The third of them is traced.
    for _ in range(4):
        with pytest.raises(RuntimeError, match="in the middle"):
            rows.step(turns, ahead=False)

    assert rows.steps.made == 1
    assert rows.held() == held
    first.act = mx.stop_gradient
    for _ in range(4):
        mine, theirs = (side.step(turns, ahead=False)[1] for side in (rows, calm))
        assert mx.array_equal(mine, theirs)


def test_a_program_that_turns_compiling_off_meanwhile_goes_on_as_before() -> None:
    twins = Twins(load(tiny_model()), "off", floats=True)
    twins.live(2)
    # Penalties look back on twenty tokens, and until there are as many each step is another.
    for _ in range(25):
        twins.step()
    assert twins.replayed.steps.replayed

    mx.disable_compile()
    try:
        replayed = twins.replayed.steps.replayed
        for _ in range(3):
            twins.step()
        assert twins.replayed.steps.replayed == replayed
    finally:
        mx.enable_compile()

    assert twins.replayed.held() == twins.eager.held()


def test_traces_go_with_the_model() -> None:
    loaded = load(tiny_model(hidden_size=512))
    rows, turns = rows_of(loaded, 5), turns_of(1)
    for _ in range(4):
        rows.step(turns, ahead=False)
    assert rows.steps.replayed
    gone, held = weakref.ref(loaded.model), mx.get_active_memory()
    weights = sum(array.nbytes for _, array in nn.utils.tree_flatten(loaded.model.parameters()))

    del loaded, rows

    assert gone() is None
    assert held - mx.get_active_memory() >= weights


@pytest.mark.parametrize("floats", [True, False])
def test_a_replay_writes_in_place(*, floats: bool) -> None:
    loaded, peaks = load(tiny_model()), []
    for worth in (1, float("inf")):
        rows, turns = Rows(loaded, worth, floats=floats), turns_of(4)
        for name, prompt in enumerate(prompts_of([700] * 4)):
            rows.join(name, prompt)
        for _ in range(4):
            rows.step(turns, ahead=False)
        mx.synchronize()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        rows.step(turns, ahead=False)
        mx.synchronize()
        peaks.append(mx.get_peak_memory() - before)

    replayed, eager = peaks
    print(f"{replayed:,} bytes above what is held, {eager:,} eagerly")
    assert replayed <= 1.1 * eager + 4096


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_an_engine_that_replays_answers_as_one_that_does_not(
    make_engine: MakeEngine, sampling: Sampling
) -> None:
    loaded = load(tiny_model())
    answers = []
    for eager in ("", "so that nothing is replayed"):
        engine = make_engine(replace(loaded, eager=eager))
        arrivals = [
            (2 * n, make_request(f"{n}", [], p, replace(sampling, max_tokens=20 + 9 * n)))
            for n, p in enumerate(prompts_of((5, 60, 130, 17)))
        ]
        ends = run_engine(engine, arrivals)
        answers.append({name: end.request.generated for name, end in ends.items()})
        assert bool(engine.memory.running.steps[0].replayed) is not bool(eager)

    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("family", "reason"),
    [("dbrx", "its forward cannot be traced"), ("gpt_bigcode", "its rows run one by one")],
)
def test_a_family_that_cannot_be_replayed_says_why(family: str, reason: str) -> None:
    assert load(build(family)).eager == reason


ELSEWHERE = """
from kvactors.core import blas
blas.preload()
from kvactors.core.engine.engine import Engine, EngineConfig
from kvactors.core.model.load import load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.models import PlainTokenizer, tiny_model

loaded = load_model(lambda: (tiny_model(), PlainTokenizer()), ModelOptions(name="m"))
engine = Engine(loaded, EngineConfig(4, 1 << 28, False))
sampling = Sampling(max_tokens=30, temperature=0.7, top_p=0.8)
request = make_request("a", [], [1, 2, 3], sampling)
run_engine(engine, [(0, request)])
print(loaded.eager, engine.memory.running.steps[0].replayed > 0, request.generated, sep="; ")
"""


def test_without_a_compiler_and_with_compiling_turned_off_answers_are_the_same() -> None:
    found = [
        run_child(ELSEWHERE, **environment).stdout.strip().split("; ")
        for environment in ({}, {"MLX_DISABLE_COMPILE": "1"}, {"PATH": ""})
    ]

    eager = ["MLX does not compile here", "False"]
    assert [one[:2] for one in found] == [["", "True"], eager, eager]
    assert found[0][2] == found[1][2] == found[2][2]


def test_a_class_that_may_do_more_than_build_a_graph_is_not_traced() -> None:
    model = tiny_model()
    model.layers[0].mlp = Told(model.layers[0].mlp)

    assert load(model).eager == "Told is no class of MLX's or mlx-lm's"
