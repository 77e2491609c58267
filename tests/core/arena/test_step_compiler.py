"""What becomes of a step that is traced, and which models have none."""

import weakref
from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import pytest
from children import run_child
from makers import MakeEngine, prompts_of
from replays import SAMPLINGS, Rows, Twins, load, rows_of, turns_of

from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.families import build
from kvactors.core.testing.models import tiny_model


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
    loaded = load(tiny_model())

    def copies() -> bool:
        peaks = list[int]()
        for worth in (1, float("inf")):
            rows, turns = Rows(loaded, worth, floats=floats), turns_of(4)
            for name, prompt in enumerate(prompts_of([700] * 4)):
                rows.join(name, prompt)
            for _ in range(4):
                rows.step(turns, ahead=False)
            peaks.append(rows.peak(turns))
        replayed, eager = peaks
        # Temporaries end at other moments on other machines: a copy of what is held would be more.
        least = rows.arena.nbytes // 4
        print(
            f"{replayed:,} bytes above what is held, {eager:,} eagerly, a copy {least:,} at least"
        )
        return replayed >= eager + least

    # What another thread frees late is not there each time, as a copy is.
    assert not all(copies() for _ in range(3))


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


@pytest.mark.slow
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
