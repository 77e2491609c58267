"""Bugs that were put in on purpose, each of which the exactness checks must catch.

The list is the proof that those tests can fail. Each bug replaces one part of the
product; `caught` runs a small version of tier 1 and tier 2.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from oracle import mlx_lm_caches
from seeded import Bug, bug, seeded

from kvactors.core.arena import batch_cache, kv_layer
from kvactors.core.arena.arena import Arena
from kvactors.core.arena.cells import Cells
from kvactors.core.arena.pieces import Piece
from kvactors.core.arena.pools import Pool
from kvactors.core.arena.step import Reach, StepGeometry
from kvactors.core.engine.engine import Engine, EngineConfig
from kvactors.core.engine.hot_cache import HotCaches
from kvactors.core.engine.runner import DecodeBatch
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


@bug(kv_layer, "attend")
def one_key_dropped_in_one_layer(true: Any) -> Any:
    calls = iter(range(1 << 30))

    def attend(queries: Any, stored: Any, plan: Any) -> Any:
        if next(calls) % 2:
            plan = replace(plan, mask=plan.mask & (mx.arange(plan.mask.shape[-1]) != 3))
        return true(queries, stored, plan)

    return attend


@bug(kv_layer.KVLayer, "offset")
def positions_off_by_one(true: Any) -> Any:
    return property(lambda self: true.fget(self) + 1)


@bug(kv_layer.KVLayer, "offset")
def positions_off_by_one_in_company(true: Any) -> Any:
    return property(lambda self: true.fget(self) + (1 if len(self.table) > 1 else 0))


def masked(true: Any, change: Callable[[Reach], mx.array]) -> Any:
    """Another mask in every step."""

    def reaches(self: Any, layer: Any) -> list[Reach]:
        return [replace(found, mask=change(found)) for found in true(self, layer)]

    return reaches


@bug(StepGeometry, "reaches")
def a_stale_cell_is_seen(true: Any) -> Any:
    return masked(
        true, lambda found: mx.arange(found.extent) <= found.cells.at[:, None, :, None] + 1
    )


@bug(StepGeometry, "reaches")
def padding_is_seen(true: Any) -> Any:
    return masked(true, lambda found: mx.ones_like(found.mask))


@bug(Pool, "write")
def tokens_written_at_the_longest_rows_end(true: Any) -> Any:
    def write(self: Any, keys: Any, values: Any, cells: Cells) -> None:
        longest = mx.broadcast_to(cells.at.max(axis=0), cells.at.shape)
        true(self, keys, values, Cells(longest, cells.start))

    return write


@bug(Pool, "write")
def tokens_written_to_the_neighbour(true: Any) -> Any:
    def write(self: Any, keys: Any, values: Any, cells: Cells) -> None:
        true(self, keys[::-1], values, cells)

    return write


@bug(Pool, "move")
def the_hole_is_not_filled(true: Any) -> Any:
    return lambda self, target, source: None


@bug(Arena, "leave")
def the_rows_order_is_not_mirrored(true: Any) -> Any:
    def leave(self: Any, row: int) -> int:
        true(self, row)
        # As if the rows behind moved up, not the last one into the hole: who mirrors that keeps
        # another order than the bytes.
        return row

    return leave


@bug(Pool, "load")
def a_piece_is_loaded_one_token_late(true: Any) -> Any:
    def load(self: Any, slot: int, start: int, arrays: Any) -> None:
        # Rolling would not do: attention does not care in which order keys stand.
        late = {name: array[:, :, :-1] for name, array in arrays.items()}
        true(self, slot, start + 1, late)

    return load


@bug(HotCaches, "take")
def the_tail_is_not_refreshed(true: Any) -> Any:
    def take(self: Any, agent_id: str, rows: Any, row: int, tokens: Any) -> None:
        cache = self.get(agent_id)
        if not cache.pieces:
            true(self, agent_id, rows, row, tokens)
        cache.tokens = list(tokens)

    return take


@bug(Arena, "export")
def keys_and_values_swapped_on_export(true: Any) -> Any:
    def export(self: Any, *args: int) -> Any:
        piece = true(self, *args)
        groups = tuple({n: a[:, ::-1] for n, a in group.items()} for group in piece.groups)
        return Piece(piece.start, piece.end, groups, piece.spec)

    return export


# Not public: what a step is fed is decided and used in one place.
@bug(DecodeBatch, "_inputs")
def the_surplus_token_is_read(true: Any) -> Any:
    def inputs(self: Any, flight: Any) -> Any:
        fed = true(self, flight)
        return fed if flight is None or len(fed) < 2 else fed[::-1]

    return inputs


BUGS = [
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


@pytest.mark.parametrize("seed", BUGS, ids=str)
def test_the_suite_catches(
    seed: Bug, load_grid: Callable[..., LoadedModel], expected: list[list[int]]
) -> None:
    with seeded(seed):
        assert caught(load_grid(), expected)
