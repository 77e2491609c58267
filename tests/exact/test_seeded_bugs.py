"""Bugs that were put in on purpose, each of which the exactness checks must catch.

The list is the proof that those tests can fail. Each bug patches one function of the
product; `caught` runs a small version of tier 1 and tier 2.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from oracle import mlx_lm_caches

from kvactors.core.arena import arena, batch_cache, kv_layer, pieces, pools, step
from kvactors.core.arena.cells import Cells
from kvactors.core.engine import hot_cache, runner
from kvactors.core.engine.engine import Engine, EngineConfig
from kvactors.core.errors import TurnFailed
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine

LENGTHS = (9, 70, 300, 12, 31)
PROMPTS = [np.random.default_rng(i).integers(1, 128, n).tolist() for i, n in enumerate(LENGTHS)]
SAMPLING = [Sampling(max_tokens=n) for n in (8, 12, 16, 10, 14)]


def turns(loaded: LoadedModel, together: bool) -> list[list[int]]:
    """Three turns of five agents: all at once, or each in an engine of its own."""
    engine = new_engine(loaded)
    said: list[list[int]] = []
    engines = [engine if together else new_engine(loaded) for _ in PROMPTS]
    first = [make_request(f"{i}", [], p, SAMPLING[i]) for i, p in enumerate(PROMPTS)]
    run_all(engines, first)
    said += [request.generated for request in first]
    second = [
        make_request(f"{i}", request.tokens, [5, 6, 7 + i], SAMPLING[-1 - i])
        for i, request in enumerate(first)
    ]
    run_all(engines, second)
    said += [request.generated for request in second]
    third = [
        make_request(f"{i}", request.tokens, [9, 8, 7 + i], SAMPLING[i])
        for i, request in enumerate(second)
    ]
    run_all(engines, third)
    return said + [request.generated for request in third]


def new_engine(loaded: LoadedModel) -> Engine:
    return Engine(loaded, EngineConfig(8, 1 << 30, True))


def run_all(engines: list[Engine], requests: list[Any]) -> None:
    if engines[0] is engines[1]:
        run_engine(engines[0], [(i // 2, request) for i, request in enumerate(requests)])
    else:
        for engine, request in zip(engines, requests, strict=True):
            run_engine(engine, [(0, request)])


def step_error(loaded: LoadedModel) -> float:
    """Tier 2 in small: one step from the same bytes against mlx-lm, in deviations."""
    caches = mlx_lm_caches(loaded)
    mx.eval(loaded.model(mx.array([PROMPTS[1]]), cache=caches))
    rows = [batch_cache.BatchQuantizedKVCache.merge([cache]) for cache in caches]
    ours = loaded.model(mx.array([[7]]), cache=rows)[0, -1]
    theirs = loaded.model(mx.array([[7]]), cache=caches)[0, -1]
    return float(mx.abs(ours - theirs).max() / mx.sqrt(mx.var(theirs)))


def caught(loaded: LoadedModel, expected: list[list[int]]) -> bool:
    """Whether either tier sees a difference, or the bug cannot even run."""
    try:
        return turns(loaded, together=True) != expected or step_error(loaded) > 1e-4
    except (AssertionError, ValueError, IndexError, TurnFailed):
        return True


Patch = Callable[[pytest.MonkeyPatch], None]


def one_key_dropped_in_one_layer(patch: pytest.MonkeyPatch) -> None:
    true: Any = vars(kv_layer)["attend"]
    calls = iter(range(1 << 30))

    def attend(queries: Any, stored: Any, plan: Any) -> Any:
        if next(calls) % 2:
            plan = replace(plan, mask=plan.mask & (mx.arange(plan.mask.shape[-1]) != 3))
        return true(queries, stored, plan)

    patch.setattr(kv_layer, "attend", attend)


def positions_off_by_one(patch: pytest.MonkeyPatch) -> None:
    true: Any = vars(kv_layer.KVLayer)["offset"].fget
    patch.setattr(kv_layer.KVLayer, "offset", property(lambda self: true(self) + 1))


def positions_off_by_one_in_company(patch: pytest.MonkeyPatch) -> None:
    true: Any = vars(kv_layer.KVLayer)["offset"].fget
    patch.setattr(
        kv_layer.KVLayer,
        "offset",
        property(lambda self: true(self) + (1 if len(self.table) > 1 else 0)),
    )


def reaches(patch: pytest.MonkeyPatch, change: Callable[[step.Reach], mx.array]) -> None:
    """Change the mask of every step."""
    true: Any = step.StepGeometry._reach

    def reach(self: Any, *args: Any) -> step.Reach:
        found: step.Reach = true(self, *args)
        return replace(found, mask=change(found))

    patch.setattr(step.StepGeometry, "_reach", reach)


def a_stale_cell_is_seen(patch: pytest.MonkeyPatch) -> None:
    reaches(patch, lambda found: mx.arange(found.extent) <= found.cells.at[:, None, :, None] + 1)


def padding_is_seen(patch: pytest.MonkeyPatch) -> None:
    reaches(patch, lambda found: mx.ones_like(found.mask))


def tokens_written_at_the_longest_rows_end(patch: pytest.MonkeyPatch) -> None:
    true = pools.Pool.write

    def write(self: Any, keys: Any, values: Any, cells: Cells) -> None:
        longest = mx.broadcast_to(cells.at.max(axis=0), cells.at.shape)
        true(self, keys, values, Cells(longest, cells.start))

    patch.setattr(pools.Pool, "write", write)


def tokens_written_to_the_neighbour(patch: pytest.MonkeyPatch) -> None:
    true = pools.Pool.write

    def write(self: Any, keys: Any, values: Any, cells: Cells) -> None:
        true(self, keys[::-1], values, cells)

    patch.setattr(pools.Pool, "write", write)


def the_hole_is_not_filled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pools.Pool, "move", lambda self, target, source: None)


def the_rows_order_is_not_mirrored(patch: pytest.MonkeyPatch) -> None:
    def leave(rows: Any, requests: list[Any], request: Any) -> None:
        row = requests.index(request)
        rows.leave(row)
        del requests[row]

    patch.setattr(runner, "_leave", leave)


def a_piece_is_loaded_one_token_late(patch: pytest.MonkeyPatch) -> None:
    true = pools.Pool.load

    def load(self: Any, slot: int, start: int, arrays: Any) -> None:
        # Rolling would not do: attention does not care in which order keys stand.
        late = {name: array[:, :, :-1] for name, array in arrays.items()}
        true(self, slot, start + 1, late)

    patch.setattr(pools.Pool, "load", load)


def the_tail_is_not_refreshed(patch: pytest.MonkeyPatch) -> None:

    true = hot_cache.HotCaches.take

    def take(self: Any, agent_id: str, rows: Any, row: int, tokens: Any) -> None:
        cache = self.get(agent_id)
        if not cache.pieces:
            true(self, agent_id, rows, row, tokens)
        cache.tokens = list(tokens)

    patch.setattr(hot_cache.HotCaches, "take", take)


def keys_and_values_swapped_on_export(patch: pytest.MonkeyPatch) -> None:
    true = arena.Arena.export

    def export(self: Any, *args: int) -> Any:
        piece = true(self, *args)
        groups = tuple({n: a[:, ::-1] for n, a in group.items()} for group in piece.groups)
        return pieces.Piece(piece.start, piece.end, groups, piece.spec)

    patch.setattr(arena.Arena, "export", export)


def the_surplus_token_is_read(patch: pytest.MonkeyPatch) -> None:
    true = runner.DecodeBatch._inputs

    def inputs(self: Any, flying: Any, tokens: Any) -> Any:
        fed = true(self, flying, tokens)
        return fed if tokens is None or len(fed) < 2 else fed[::-1]

    patch.setattr(runner.DecodeBatch, "_inputs", inputs)


BUGS: list[Patch] = [
    one_key_dropped_in_one_layer,
    positions_off_by_one,
    positions_off_by_one_in_company,
    a_stale_cell_is_seen,
    padding_is_seen,
    tokens_written_at_the_longest_rows_end,
    tokens_written_to_the_neighbour,
    the_hole_is_not_filled,
    the_rows_order_is_not_mirrored,
    a_piece_is_loaded_one_token_late,
    the_tail_is_not_refreshed,
    keys_and_values_swapped_on_export,
    the_surplus_token_is_read,
]


@pytest.fixture(scope="module")
def expected(load_grid: Callable[..., LoadedModel]) -> list[list[int]]:
    return turns(load_grid(), together=False)


def test_without_a_bug_nothing_is_caught(
    load_grid: Callable[..., LoadedModel], expected: list[list[int]]
) -> None:
    assert not caught(load_grid(), expected)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_suite_catches(
    bug: Patch,
    load_grid: Callable[..., LoadedModel],
    expected: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bug(monkeypatch)

    assert caught(load_grid(), expected)
