"""Bugs in windows, sinks and states that were put in on purpose: the exactness checks see them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from oracle import one_step

from kvactors.core.arena import arena, kv_rows, recurrent_layer, step
from kvactors.core.attention import packed
from kvactors.core.engine.engine import Engine, EngineConfig
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine

Patch = Callable[[pytest.MonkeyPatch], None]
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


def the_window_is_one_token_long(patch: pytest.MonkeyPatch) -> None:
    true: Any = step.StepGeometry._reach

    def reach(self: Any, starts: Any, extent: int, layer: Any) -> Any:
        found = true(self, starts, extent, layer)
        if layer.window is None:
            return found
        wide: Any = replace(layer, window=layer.window + 1)
        return true(self, starts, extent, wide)

    patch.setattr(step.StepGeometry, "_reach", reach)


def a_full_ring_shows_what_was_overwritten(patch: pytest.MonkeyPatch) -> None:
    true: Any = step.StepGeometry._reach

    def reach(self: Any, starts: Any, extent: int, layer: Any) -> Any:
        found = true(self, starts, extent, layer)
        cells = mx.arange(found.extent)[None, None, None]
        return replace(found, mask=found.mask | (cells == 0)) if layer.window else found

    patch.setattr(step.StepGeometry, "_reach", reach)


def a_checkpoint_lacks_a_token(patch: pytest.MonkeyPatch) -> None:
    true: Any = kv_rows.KVRows.load

    def load(self: Any, row: int, start: int, end: int, arrays: Any) -> None:
        if self.layer.window:
            arrays = {n: mx.concatenate([a[:, :, :-1], a[:, :, :1]], 2) for n, a in arrays.items()}
        true(self, row, start, end, arrays)

    patch.setattr(kv_rows.KVRows, "load", load)


def sinks_are_dropped(patch: pytest.MonkeyPatch) -> None:
    true: Any = packed._softmax
    patch.setattr(packed, "_softmax", lambda scores, sinks, tokens: true(scores, None, tokens))


def a_state_is_not_put_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recurrent_layer.StateRows, "cut", lambda self, row, length: None)


def states_of_rows_are_not_moved(patch: pytest.MonkeyPatch) -> None:
    true: Any = recurrent_layer.StateRows.leave
    patch.setattr(
        recurrent_layer.StateRows,
        "leave",
        lambda self, slab, slot, last: true(self, slab, last, last),
    )


def the_state_of_a_joining_row_is_not_copied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recurrent_layer.StateRows, "copy_row", lambda self, row, other, source: None)


BUGS: list[tuple[str, Patch]] = [
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


@pytest.mark.parametrize(("family", "bug"), BUGS, ids=lambda each: getattr(each, "__name__", each))
def test_the_suite_catches(
    family: str,
    bug: Patch,
    load_family: Callable[..., LoadedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = load_family(family)
    expected = turns(loaded, together=False)
    bug(monkeypatch)

    assert caught(loaded, expected)
