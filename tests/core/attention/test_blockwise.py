"""Attention in blocks on the CPU is attention: against NumPy in float64."""

import mlx.core as mx
import numpy as np
import pytest

from kvactors.core.attention.blockwise_cpu import attend_in_blocks
from kvactors.core.cache.spec import Side
from kvactors.core.quant.codec import StoredKV
from kvactors.core.quant.device import on_cpu

SCALE = 0.3

pytestmark = pytest.mark.skipif(not on_cpu(), reason="blocks are for the CPU")


def attention(
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    mask: np.ndarray | None,
    sinks: np.ndarray | None,
) -> np.ndarray:
    """What it must be, head by head."""
    rows, heads, tokens, _ = queries.shape
    out = np.zeros((rows, heads, tokens, values.shape[-1]))
    for row in range(rows):
        for head in range(heads):
            kv_head = head * keys.shape[1] // heads
            scores = SCALE * queries[row, head].astype("d") @ keys[row, kv_head].astype("d").T
            if mask is not None:
                scores = np.where(mask[row, 0], scores, -np.inf)
            weights = np.exp(scores)
            total = weights.sum(-1, keepdims=True)
            if sinks is not None:
                total += np.exp(float(sinks[head]))
            out[row, head] = weights / total @ values[row, kv_head].astype("d")
    return out


def a_mask(kind: str, rows: int, tokens: int, extent: int) -> np.ndarray | None:
    """True where a query sees a key; rows end at different keys."""
    if kind == "none":
        return None
    ends = extent - np.arange(rows)[:, None, None] - tokens + 1 + np.arange(tokens)[:, None]
    keys = np.arange(extent)
    seen = keys < ends
    if kind == "window":
        seen &= keys >= ends - 5
    return seen[:, None]


@pytest.mark.parametrize("sunk", [False, True], ids=["no sinks", "sinks"])
@pytest.mark.parametrize("kind", ["none", "causal", "window"])
@pytest.mark.parametrize(
    # The last is one block, which is so large that it is made two.
    ("block", "extent"),
    [(1, 40), (4000, 40), (8 << 20, 40), (8 << 20, 2400)],
)
@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 6, 2), (2, 4, 1)], ids=str)
def test_blocks_of_any_size_are_one_attention(
    shape: tuple[int, int, int], block: int, extent: int, kind: str, sunk: bool
) -> None:
    rows, heads, kv_heads = shape
    tokens, dim, value_dim = 7, 16, 8
    rng = np.random.default_rng(rows)
    queries = rng.standard_normal((rows, heads, tokens, dim), dtype="f")
    keys = rng.standard_normal((rows, kv_heads, extent, dim), dtype="f")
    values = rng.standard_normal((rows, kv_heads, extent, value_dim), dtype="f")
    mask = a_mask(kind, rows, tokens, extent)
    sinks = rng.standard_normal(heads, dtype="f") if sunk else None

    found = attend_in_blocks(
        mx.array(queries),
        lambda: (mx.array(keys), mx.array(values)),
        SCALE,
        None if mask is None else mx.array(mask),
        None if sinks is None else mx.array(sinks),
        block_bytes=block,
    )

    expected = attention(queries, keys, values, mask, sinks)
    np.testing.assert_allclose(np.array(found), expected, rtol=1e-5, atol=1e-6)


def test_three_blocks_or_four_are_there_at_a_time_however_many_there_are() -> None:
    queries, keys = mx.ones((1, 8, 256, 64)), mx.ones((1, 8, 4096, 64))
    block = 1 << 20
    mx.eval(queries, keys)
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()

    mx.eval(attend_in_blocks(queries, lambda: (keys, keys), SCALE, block_bytes=block))

    # All scores are 32 blocks. Beside these: the queries times the scale, what is returned, twice.
    assert mx.get_peak_memory() - before <= 4 * block + 3 * queries.nbytes


def test_keys_are_gone_before_values_become_floats_and_neither_is_copied() -> None:
    side = Side(64, 4, 64)
    codes = mx.quantize(mx.random.normal((1, 1, 4, 2048, 64)), side.group_size, side.bits)
    stored, queries = StoredKV(codes, codes, (side, side)), mx.ones((1, 4, 8, 64))
    mx.eval(queries, codes)
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()

    mx.eval(attend_in_blocks(queries, stored.floats, SCALE, "causal"))

    keys, scores = 4 * 4 * 2048 * 64, 4 * 4 * 8 * 2048
    assert mx.get_peak_memory() - before <= 1.05 * keys + 2 * scores


def test_in_float64_it_is_exact_to_float64() -> None:
    """NumPy's sums once came back to MLX as float32, which the exact tests then compared."""
    rng = np.random.default_rng(3)
    queries, keys, values = (rng.normal(size=(1, 2, n, 8)) for n in (2, 30, 30))
    q, k, v = (mx.array(array, mx.float64) for array in (queries, keys, values))

    out = np.array(attend_in_blocks(q, lambda: (k, v), SCALE))

    assert np.abs(out - attention(queries, keys, values, None, None)).max() < 1e-14


def test_large_scores_do_not_overflow() -> None:
    queries = mx.full((1, 1, 2, 4), 100.0)
    keys = mx.concatenate([mx.full((1, 1, 1, 4), 100.0), mx.full((1, 1, 1, 4), -100.0)], axis=2)
    values = mx.array([[[[1.0], [2.0]]]])

    assert attend_in_blocks(queries, lambda: (keys, values), 1.0).tolist() == [[[[1.0], [1.0]]]]


def test_a_query_that_sees_no_key_is_not_a_number_and_its_neighbours_are_as_alone() -> None:
    queries, keys = mx.ones((1, 1, 2, 4)), mx.ones((1, 1, 3, 4))
    values = mx.array([[[[1.0], [2.0], [6.0]]]])
    mask = mx.array([[[[False, False, False], [True, True, False]]]])

    blind, seeing = np.array(attend_in_blocks(queries, lambda: (keys, values), 1.0, mask))[
        0, 0, :, 0
    ]

    assert np.isnan(blind)
    assert seeing == 1.5
