"""Bugs in windows, sinks and states that were put in on purpose: the exactness checks see them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from seeded import Bug, bug, seeded

from kvactors.core.arena import arena, kv_layer
from kvactors.core.arena.kv_rows import KVRows
from kvactors.core.arena.recurrent_layer import StateRows
from kvactors.core.arena.step import StepGeometry
from kvactors.core.engine.engine import Engine, EngineConfig
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.one_step import one_step

LENGTHS = (9, 330, 30)
PROMPTS = [np.random.default_rng(i).integers(1, 128, n).tolist() for i, n in enumerate(LENGTHS)]
SAMPLING = [Sampling(max_tokens=n) for n in (5, 12, 8)]


def turns(loaded: LoadedModel, together: bool) -> list[list[int]]:
    """Two turns of three agents: all at once, or each in an engine of its own."""
    engines = [Engine(loaded, EngineConfig(8, 1 << 30, True)) for _ in PROMPTS]
    said: list[list[int]] = []
    known: list[list[int]] = [[] for _ in PROMPTS]
    for turn in range(2):
        requests = [
            make_request(f"{i}", known[i], prompt if turn == 0 else [5, 6], SAMPLING[i - turn])
            for i, prompt in enumerate(PROMPTS)
        ]
        if together:
            run_engine(engines[0], [(i, request) for i, request in enumerate(requests)])
        else:
            for engine, request in zip(engines, requests, strict=True):
                run_engine(engine, [(0, request)])
        known = [request.tokens for request in requests]
        said += [request.generated for request in requests]
    return said


def step_error(loaded: LoadedModel) -> float:
    """One step from the same bytes against mlx-lm, in deviations."""
    rows = arena.Arena(loaded.spec, loaded.policy)
    rows.add_row(0, 330)
    for start in range(0, 330, 110):
        rows.forward(loaded.model, mx.array([PROMPTS[1][start : start + 110]]))
        rows.evaluate()
    theirs = one_step(loaded, rows, 0)
    ours = rows.forward(loaded.model, mx.array([[7]]))[0, -1]
    return float(mx.abs(ours - theirs).max() / mx.sqrt(mx.var(theirs)))


def caught(loaded: LoadedModel, expected: list[list[int]]) -> bool:
    """Whether either tier sees a difference, or the bug cannot even run."""
    try:
        return turns(loaded, together=True) != expected or step_error(loaded) > 1e-4
    except (AssertionError, ValueError, IndexError):
        return True


@bug(StepGeometry, "reaches")
def the_window_is_one_token_long(true: Any) -> Any:
    def reaches(self: Any, layer: Any) -> Any:
        return true(self, replace(layer, window=layer.window + 1) if layer.window else layer)

    return reaches


@bug(StepGeometry, "reaches")
def a_full_ring_shows_what_was_overwritten(true: Any) -> Any:
    def reaches(self: Any, layer: Any) -> Any:
        found = true(self, layer)
        if not layer.window:
            return found
        return [replace(one, mask=one.mask | (mx.arange(one.extent) == 0)) for one in found]

    return reaches


@bug(KVRows, "load")
def a_checkpoint_lacks_a_token(true: Any) -> Any:
    def load(self: Any, row: int, start: int, end: int, arrays: Any) -> None:
        if self.layer.window:
            arrays = {n: mx.concatenate([a[:, :, :-1], a[:, :, :1]], 2) for n, a in arrays.items()}
        true(self, row, start, end, arrays)

    return load


@bug(kv_layer, "attend")
def sinks_are_dropped(true: Any) -> Any:
    return lambda queries, stored, plan: true(queries, stored, replace(plan, sinks=None))


@bug(StateRows, "cut")
def a_state_is_not_put_back(true: Any) -> Any:
    return lambda self, row, length: None


@bug(StateRows, "leave")
def states_of_rows_are_not_moved(true: Any) -> Any:
    return lambda self, slab, slot, last: true(self, slab, last, last)


@bug(StateRows, "copy_row")
def the_state_of_a_joining_row_is_not_copied(true: Any) -> Any:
    return lambda self, row, other, source: None


BUGS = [
    ("gemma3_text", the_window_is_one_token_long),
    ("gemma3_text", a_full_ring_shows_what_was_overwritten),
    ("gemma3_text", a_checkpoint_lacks_a_token),
    ("gpt_oss", sinks_are_dropped),
    ("lfm2", a_state_is_not_put_back),
    ("lfm2", states_of_rows_are_not_moved),
    ("lfm2", the_state_of_a_joining_row_is_not_copied),
]


@pytest.mark.parametrize("family", ["gemma3_text", "gpt_oss", "lfm2"])
def test_without_a_bug_nothing_is_caught(
    load_family: Callable[..., LoadedModel], family: str
) -> None:
    loaded = load_family(family)

    assert not caught(loaded, turns(loaded, together=False))


@pytest.mark.parametrize(("family", "seed"), BUGS, ids=str)
def test_the_suite_catches(family: str, seed: Bug, load_family: Callable[..., LoadedModel]) -> None:
    loaded = load_family(family)
    expected = turns(loaded, together=False)

    with seeded(seed):
        assert caught(loaded, expected)
