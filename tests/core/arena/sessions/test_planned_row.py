"""The bytes of the cache family: whatever is forked, removed, proposed and committed, a layer of an
arena attends to what the oracle in NumPy attends to."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from attended import DIM, HEADS, KV_HEADS, SCALE, numbers
from cache_machines import Sequences, Trees
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from seeded import Bug, bug, seeded

from kvactors.core.arena.pools import Pool
from kvactors.core.arena.sessions import planned_row
from kvactors.core.arena.sessions.planned_row import PlannedRow
from kvactors.core.attention.policy import AttentionPolicy
from kvactors.core.cache.family.contiguous import ContiguousBookkeeping
from kvactors.core.cache.family.step_plan import StepPlan
from kvactors.core.cache.spec import LayerSpec, ModelCacheSpec
from kvactors.core.testing.attend_oracle import AttendOracle

LAYERS = 2
FEW = settings(max_examples=25, stateful_step_count=20, deadline=None, database=None)
BITS = [None, 4, 8]


def new_row(bits: int | None, policy: AttentionPolicy | None = None) -> PlannedRow:
    layer = LayerSpec("full", KV_HEADS, DIM, bits, bits and 32, "float32")
    spec = ModelCacheSpec((layer,) * LAYERS, 128, 8192)
    return PlannedRow(spec, policy or AttentionPolicy("packed"))


def stored(array: np.ndarray, bits: int | None) -> np.ndarray:
    """Numbers as they are remembered."""
    if bits is None:
        return array
    codes = mx.quantize(mx.array(array, mx.float32), group_size=32, bits=bits)
    return np.array(mx.dequantize(*codes, group_size=32, bits=bits))


def row_attends(
    row: PlannedRow, new: tuple[Any, ...], positions: Sequence[int], plan: StepPlan, layer: int
) -> np.ndarray:
    q, k, v = (mx.array(array, mx.float32) for array in new)
    out = row.update_and_attend(q, k, v, positions, plan, layer_id=layer, scale=SCALE)
    return np.array(out)


class Attends:
    """Tokens attend through a row of an arena, and through the oracle."""

    bits: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.cache: Any
        self.row = new_row(self.bits)
        self.oracle = AttendOracle(self.cache)

    def attend(self, positions: list[int], names: Sequence[int], _sees: Any = None) -> None:
        for layer in range(LAYERS):
            found, expected = self.both(positions, names, layer)
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())

    def both(self, positions: list[int], names: Sequence[int], layer: int) -> tuple[Any, Any]:
        q, k, v = (numbers(what, names, layer) for what in "qkv")
        plan = self.cache.plan(positions)
        out = row_attends(self.row, (q, k, v), positions, plan, layer)
        k, v = stored(k, self.bits), stored(v, self.bits)
        return out, self.oracle.update_and_attend(q, k, v, positions, layer, SCALE)

    def spoil(self, positions: list[int]) -> None:
        """Only one layer is reached."""
        self.both(positions, range(1000, 1000 + len(positions)), 0)


class AttendingTrees(Attends, Trees):
    def __init__(self) -> None:
        super().__init__()
        self.cache.on_commit(self.move)

    def moved(self, base: int, cells: Sequence[int]) -> None:
        self.oracle.move(base, cells)
        self.row.gather_into(base, cells)


class AttendingSequences(Attends, Sequences):
    pass


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("machine", [AttendingSequences, AttendingTrees])
def test_bytes_are_attended_as_the_oracle_says(machine: Any, bits: int | None) -> None:
    run_state_machine_as_test(type("Machine", (machine,), {"bits": bits}), settings=FEW)


@bug(Pool, "gather_into")
def a_commit_is_off_by_one(true: Any) -> Any:
    return lambda pool, slot, start, cells: true(pool, slot, start, [cell + 1 for cell in cells])


@bug(Pool, "gather_into")
def a_commit_moves_nothing(_true: Any) -> Any:
    return lambda pool, slot, start, cells: None


@bug(planned_row, "FlatRow")
def a_sibling_is_visible(true: Any) -> Any:
    def row(positions: Any, cells: Any, sees: np.ndarray) -> Any:
        before = np.arange(sees.shape[1]) <= np.array(cells)[:, None]
        return true(positions, cells, sees | before)

    return row


@bug(planned_row, "FlatRow")
def the_trunk_is_written(true: Any) -> Any:
    return lambda positions, cells, sees: true(positions, [max(0, c - 1) for c in cells], sees)


@bug(PlannedRow, "_stand_behind")
def a_run_begins_where_the_last_one_ended(_true: Any) -> Any:
    return lambda row, length: None


@pytest.mark.parametrize(
    "seed",
    [
        a_commit_is_off_by_one,
        a_commit_moves_nothing,
        a_sibling_is_visible,
        the_trunk_is_written,
        a_run_begins_where_the_last_one_ended,
    ],
    ids=str,
)
def test_each_bug_is_seen(seed: Bug) -> None:
    with seeded(seed), pytest.raises(AssertionError):
        two_trees_are_committed()


def test_two_trees_one_after_the_other() -> None:
    two_trees_are_committed()


def two_trees_are_committed() -> None:
    run = AttendingTrees()
    run.cache.on_commit(run.moved)
    run.attend([*range(7)], range(7))
    for round_, (base, chain) in enumerate(((7, [0, 2]), (9, [0, 1, 3]))):
        run.cache.propose([-1, 0, 0, 1])
        run.attend(
            [base, base + 1, base + 1, base + 2], range(100 + round_ * 10, 104 + round_ * 10)
        )
        run.cache.commit(chain)
    run.attend([12, 13], [200, 201])


@pytest.mark.parametrize("mode", ["packed", "dequantize", "auto"])
def test_a_single_sequence_on_each_path(mode: Any) -> None:
    cache = ContiguousBookkeeping(512)
    row, oracle = new_row(4, AttentionPolicy(mode)), AttendOracle(cache)

    for part in (range(300), range(300, 301), range(301, 340)):
        q, k, v = (numbers(what, part) for what in "qkv")
        found = row_attends(row, (q, k, v), part, cache.plan(part), 0)
        expected = oracle.update_and_attend(q, stored(k, 4), stored(v, 4), part, 0, SCALE)
        assert found.shape == (1, HEADS, len(part), DIM)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_a_row_begins_small_and_grows_with_what_it_holds() -> None:
    cache, row = ContiguousBookkeeping(100_000), new_row(4)
    sizes = [row.nbytes]

    for count in (1, 200, 2000):
        part = range(cache.length, cache.length + count)
        keys = mx.ones((1, KV_HEADS, count, DIM))
        plan = cache.plan(part)
        row.update_and_attend(
            mx.ones((1, HEADS, count, DIM)), keys, keys, part, plan, layer_id=0, scale=1.0
        )
        sizes.append(row.nbytes)

    one = LAYERS * new_row(4).arena.spec.layers[0].bytes_per_token()
    assert sizes[0] == sizes[1] == sizes[2] <= 256 * one
    assert 2201 * one <= sizes[3] <= 4096 * one
