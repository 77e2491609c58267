"""Flat steps on every path of attention, against NumPy in float64 over what the codes say."""

from itertools import accumulate, pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from seeded import bug, seeded

from kvactors.core.arena import kv_layer
from kvactors.core.arena.arena import Arena
from kvactors.core.arena.flat_step import FlatRow, FlatStep
from kvactors.core.arena.kv_layer import KVLayer
from kvactors.core.arena.step import EvenStep
from kvactors.core.attention.plan import AttendPlan
from kvactors.core.attention.policy import AttentionPolicy
from kvactors.core.cache.spec import LayerSpec, ModelCacheSpec

LIMIT = 1e-4
HEADS, DIM, SCALE = 8, 64, 0.125
FULL = LayerSpec("full", 2, DIM, 4, 64, "float32")
WINDOW = LayerSpec("sliding", 2, DIM, 4, 64, "float32", window=100)
# A step leads the longest row over the end of its ring.
LENGTHS, COUNTS = (9, 379, 130, 1500), (1, 7, 3, 2)
POLICIES = {
    "packed": AttentionPolicy("packed"),
    "unpack": AttentionPolicy(unpack=True),
    "dequantize": AttentionPolicy("dequantize"),
}


def random(*shape: int, seed: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def said(new: mx.array) -> np.ndarray:
    """What the codes of keys or values say."""
    return np.array(mx.dequantize(*mx.quantize(new, 64, 4), 64, 4)).astype(np.float64)


class Rows:
    """Rows of one `layer`, of random keys and values, which attend by a `policy`."""

    def __init__(self, layer: LayerSpec, policy: AttentionPolicy, *, floats: bool) -> None:
        self.spec = ModelCacheSpec((layer,), 128, 8192)
        self.arena = Arena(self.spec, policy)
        self.arena.floats = floats
        # By row, as `arena` has them: keys and values, [sides, kv_heads, tokens, dim].
        self.held: list[np.ndarray] = []
        self.order: list[int] = []
        for index, length in enumerate(LENGTHS):
            new = random(2, 2, length, DIM, seed=index)
            row = self.arena.take(self._alone(policy, new), 0)
            self.order.insert(row, index)
            self.held.insert(row, said(new))

    @property
    def layer(self) -> KVLayer:
        (layer,) = self.arena.layers
        assert isinstance(layer, KVLayer)
        return layer

    def _alone(self, policy: AttentionPolicy, new: mx.array) -> Arena:
        arena = Arena(self.spec, policy)
        arena.add_row(0, new.shape[2])
        (layer,) = arena.layers
        assert isinstance(layer, KVLayer)
        for start in range(0, new.shape[2], 200):
            keys, values = new[:, None, :, start : start + 200]
            arena.begin(EvenStep(arena.table, keys.shape[2]))
            layer.update_and_fetch(keys, values)
            arena.table.advance(keys.shape[2])
        return arena

    def step(self, counts: tuple[int, ...], sinks: mx.array | None) -> tuple[mx.array, mx.array]:
        """Rows take so many tokens: queries [tokens, heads, dim], and what is attended."""
        table = self.arena.table
        own = [counts[index] for index in self.order]
        rows = [FlatRow(range(n, n + t)) for n, t in zip(table.lengths, own, strict=True)]
        self.arena.begin(FlatStep(table, rows, floats=self.arena.floats))
        new = random(2, sum(own), 2, 1, DIM, seed=len(own) + sum(own))
        queries = random(sum(own), HEADS, 1, DIM, seed=3)
        self.layer.update_and_fetch(*new)
        attended = self.layer.attend(queries, None, scale=SCALE, sinks=sinks)
        table.advance_by(own)
        ends = [0, *accumulate(own)]
        for row, (begin, end) in enumerate(pairwise(ends)):
            more = said(new[:, begin:end, :, 0]).swapaxes(1, 2)
            self.held[row] = np.concatenate([self.held[row], more], axis=2)
        return queries[:, :, 0], attended[:, :, 0]

    def expected(
        self, counts: tuple[int, ...], queries: mx.array, sinks: mx.array | None
    ) -> np.ndarray:
        """What `step` should attend, of the bytes that are held after it."""
        out = []
        ends = [0, *accumulate(counts[index] for index in self.order)]
        for held, (begin, end) in zip(self.held, pairwise(ends), strict=True):
            for place, query in enumerate(np.array(queries[begin:end]), begin - end + 1):
                position = held.shape[2] + place
                seen = held[
                    :, :, max(0, position - (self.layer.layer.window or position)) : position
                ]
                out.append(attended(query, seen, sinks))
        return np.stack(out)


def attended(query: np.ndarray, seen: np.ndarray, sinks: mx.array | None) -> np.ndarray:
    """[heads, dim] of a `query` that sees these keys and values, head by head."""
    found = []
    for head, asked in enumerate(query.astype(np.float64)):
        keys, values = seen[:, head * 2 // HEADS]
        scores = keys @ asked * SCALE
        more = np.zeros(0) if sinks is None else np.array(sinks[head : head + 1])
        weights = np.exp(np.append(scores, more) - scores.max())
        found.append(weights[: len(keys)] @ values / weights.sum())
    return np.array(found)


def error(policy: str, layer: LayerSpec, *, floats: bool = False, sinks: bool = False) -> float:
    """The largest one of a flat step, in deviations of what it should give."""
    paths, more = set[str](), random(HEADS, seed=9) if sinks else None
    rows = Rows(layer, POLICIES[policy], floats=floats)

    @bug(kv_layer, "attend")
    def noted(true: Any) -> Any:
        def attend(queries: mx.array, stored: Any, plan: AttendPlan) -> mx.array:
            paths.add(plan.path)
            result: mx.array = true(queries, stored, plan)
            return result

        return attend

    # The first step shows that floats may be kept.
    rows.step((1,) * len(LENGTHS), more)
    with seeded(noted):
        queries, found = rows.step(COUNTS, more)
    kept = [pool.floats.copy is not None for pool in rows.layer.rows.pools]
    expected = rows.expected(COUNTS, queries, more)

    assert paths == {policy}
    assert any(kept) == floats
    return float(np.abs(np.array(found) - expected).max() / expected.std())


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("layer", [FULL, WINDOW], ids=["full", "window"])
@pytest.mark.parametrize(
    ("policy", "floats"),
    [("packed", False), ("dequantize", False), ("unpack", False), ("unpack", True)],
)
def test_a_flat_step_agrees_with_float64_numpy(
    policy: str, layer: LayerSpec, *, floats: bool, sinks: bool
) -> None:
    found = error(policy, layer, floats=floats, sinks=sinks)

    print(f"{found:.1e} of the deviation")
    assert found <= LIMIT


@pytest.mark.parametrize("policy", POLICIES)
def test_queries_that_are_folded_back_by_one_are_found(policy: str) -> None:
    @bug(FlatStep, "unfolded")
    def late(true: Any) -> Any:
        return lambda step, index, attended: mx.roll(true(step, index, attended), 1, 0)

    with seeded(late):
        assert error(policy, FULL) > LIMIT
