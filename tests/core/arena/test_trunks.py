"""Rows that read what they begin with where it is: to the bit as if each had a copy, at the price
of none."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, example, given, settings
from kin import OPERATIONS, Kin, Side, beginning
from makers import LoadFamily, LoadGrid, prompt_of
from seeded import Bug, bug, seeded

from kvactors.core.arena.arena import Arena
from kvactors.core.arena.pieces import LayerPieces, make_trunk
from kvactors.core.arena.pools import Pool
from kvactors.core.arena.step import EvenStep
from kvactors.core.cache.slabs import Trunk
from kvactors.core.engine.runner import new_arena
from kvactors.core.model.load import LoadedModel

# Joins of both beginnings and of a stranger, two slabs with a trunk and one without.
COMPANY = [("join", 0, 20), ("join", 1, 60), ("join", 4, 30), ("join", 2, 5), ("join", 0, 1)]
LIFE = [
    *COMPANY,
    *[("step", 1, 0)] * 3,
    ("step", 40, 0),
    ("flat", 7, 0),
    ("cut", 1, 3),
    ("leave", 0, 0),
    ("move", 2, 0),
    ("shrink", 0, 0),
    ("step", 1, 0),
    ("step", 70, 0),
]


def lives(kin: Kin, operations: list[tuple[str, int, int]]) -> bool:
    """Whether both sides give the same all along."""
    return all(kin.do(*operation) for operation in operations) and kin.same_bytes()


# -- the same, to the bit ------------------------------------------------------------------


@pytest.mark.parametrize("bits", [4, 8, None])
def test_rows_that_read_their_trunk_give_what_copies_give(
    load_grid: LoadGrid, bits: int | None
) -> None:
    kin = Kin(load_grid(bits))

    assert lives(kin, LIFE)
    assert {slab.trunk.end for slab in kin.reads.table.slabs} >= {0, 130, 200}


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OPERATIONS)
@example([("join", 0, 1), ("join", 0, 1), ("leave", 0, 0), ("step", 1, 0)])
@example([("join", 2, 1), ("shrink", 0, 0), ("step", 70, 0), ("move", 0, 0), ("flat", 1, 0)])
def test_any_life_of_rows_is_the_same_with_trunks_and_with_copies(
    load_grid: LoadGrid, operations: list[tuple[str, int, int]]
) -> None:
    assert lives(Kin(load_grid()), [("join", 0, 9), ("join", 1, 3), *operations])


@pytest.mark.parametrize("family", ["gpt_oss", "gemma3_text", "qwen3"])
def test_layers_with_windows_and_sinks_have_what_they_need_beside_a_trunk(
    load_family: LoadFamily, family: str
) -> None:
    kin = Kin(load_family(family))

    # What was cut of a window does not come back.
    assert lives(kin, [operation for operation in LIFE if operation[0] != "cut"])
    assert any(slab.trunk.end for slab in kin.reads.table.slabs)


def test_the_path_is_the_same_where_the_mode_is_reproducible(load_grid: LoadGrid) -> None:
    loaded = load_grid()
    loaded = replace(loaded, policy=replace(loaded.policy, mode="auto", reproducible=True))

    kin = Kin(loaded)

    # Of one length: whole blocks are summed up to the longest of a slab.
    assert lives(kin, [*[("join", 0, 9)] * 3, ("step", 1, 0), ("step", 256, 0), ("step", 1, 0)])
    assert [slab.trunk.end for slab in kin.reads.table.slabs] == [200]


def test_models_whose_layers_cannot_read_a_trunk_say_so(load_family: LoadFamily) -> None:
    can = {family: load_family(family).spec.trunks for family in ("gpt_oss", "mamba2", "gemma2")}

    assert can == {"gpt_oss": True, "mamba2": False, "gemma2": False}


# -- what it costs -------------------------------------------------------------------------


def test_a_fork_that_joins_takes_the_bytes_of_its_own_tokens(load_grid: LoadGrid) -> None:
    loaded = load_grid()
    pieces = beginning(loaded, prompt_of(2000), 1024)
    arena, token = new_arena(loaded), loaded.spec.bytes_per_token
    mx.synchronize()
    before = mx.get_active_memory()

    for own in (10, 20, 30):
        Side(loaded, arena, reads=True).join(0, pieces, 2, prompt_of(own))
    arena.evaluate()

    taken = mx.get_active_memory() - before
    # Beside these, indices of what is to be written: less than half a copy of the beginning.
    assert arena.nbytes <= taken < arena.nbytes + 1000 * token
    # Slots are added before they are needed.
    assert arena.nbytes <= 4 * 128 * token < len(arena) * 2000 * token


def test_a_row_that_finds_no_slab_for_its_trunk_is_copied(load_grid: LoadGrid) -> None:
    loaded = load_grid()
    arena = Arena(loaded.spec, loaded.policy, max_slabs=1)
    one, two = (beginning(loaded, prompt_of(300, seed)) for seed in (1, 2))

    for pieces in (one, two, one):
        arena.add_row(300, 310, trunk=make_trunk(pieces))

    assert [slab.trunk.end for slab in arena.table.slabs] == [300, 0]
    assert arena.table.lengths == [300, 300, 300]
    assert [arena.trunk(row).end for row in range(3)] == [300, 300, 0]


def test_a_row_with_a_longer_beginning_joins_those_who_share_less_of_it(
    load_grid: LoadGrid,
) -> None:
    loaded = load_grid()
    pieces = beginning(loaded, prompt_of(300), 256)
    arena = new_arena(loaded)
    arena.add_row(300, 310, make_trunk(pieces).names, trunk=make_trunk(pieces[:1]))

    arena.add_row(300, 310, trunk=make_trunk(pieces))

    assert [(slab.trunk.end, len(slab.rows)) for slab in arena.table.slabs] == [(256, 2)]


# -- bugs that must be seen ----------------------------------------------------------------


@bug(EvenStep, "__init__")
def own_cells_are_written_one_late(true: Any) -> Any:
    def wrong(self: EvenStep, *args: Any, **kwargs: Any) -> None:
        true(self, *args, **kwargs)
        self.bases = [base - 1 if base else 0 for base in self.bases]

    return wrong


@bug(LayerPieces, "read")
def a_trunk_is_read_one_token_late(true: Any) -> Any:
    def wrong(self: LayerPieces, name: str, start: int, end: int, rows: int = 1) -> Any:
        parts = true(self, name, start, end, rows)
        return [mx.roll(part, 1, 3) for part in parts]

    return wrong


@bug(Arena, "load")
def what_a_trunk_has_is_written(true: Any) -> Any:
    def wrong(self: Arena, row: int, piece: Any) -> None:
        with seeded(bug(Arena, "trunk")(lambda _: lambda arena, row: Trunk())):
            true(self, row, piece)

    return wrong


@bug(Pool, "load")
def own_tokens_are_loaded_behind_their_place(true: Any) -> Any:
    return lambda self, slot, start, arrays: true(
        self, slot, start + (self.trunk.end > 0 and start > 0), arrays
    )


@bug(Trunk, "begins")
def strangers_read_a_trunk(true: Any) -> Any:
    return lambda self, pieces: True


@pytest.mark.parametrize(
    "wrong",
    [
        own_cells_are_written_one_late,
        a_trunk_is_read_one_token_late,
        what_a_trunk_has_is_written,
        own_tokens_are_loaded_behind_their_place,
        strangers_read_a_trunk,
    ],
    ids=str,
)
def test_a_bug_of_trunks_is_seen(load_grid: LoadGrid, wrong: Bug) -> None:
    loaded: LoadedModel = load_grid()

    with seeded(wrong):
        assert not _lives_well(loaded)


def _lives_well(loaded: LoadedModel) -> bool:
    try:
        return lives(Kin(loaded), LIFE)
    except (AssertionError, ValueError):
        return False
