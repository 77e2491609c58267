"""An NVIDIA GPU attends codes with kernels of ours: as floats are attended, each row as alone.

Where there is none, their source runs on the CPU.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from cuda_on_cpu import on_this_cpu
from seeded import bug, seeded

from kvactors.core.attention import attend as attending
from kvactors.core.attention.attend import attend, attend_together
from kvactors.core.attention.fused_cuda import PART, attend_fused, fits
from kvactors.core.attention.plan import AttendPlan
from kvactors.core.cache.spec import Side
from kvactors.core.quant.codec import StoredKV
from kvactors.core.quant.device import on_cuda

Floats = np.ndarray[Any, np.dtype[np.float64]]


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    """Those of the GPU, or the same ones on the CPU."""
    if on_cuda():
        yield
        return
    with seeded(on_this_cpu), seeded(bug(attending, "on_cuda")(lambda _: lambda: True)):
        yield


def stored(rows: int, heads: int, keys: int, side: Side, dtype: mx.Dtype) -> StoredKV:
    """Random codes, parts of larger slabs."""
    found = []
    for seed in (0, 1):
        key = mx.random.key(seed)
        noise = mx.random.normal((1, rows + 1, heads, keys + 64, side.dim), key=key).astype(dtype)
        codes = mx.quantize(noise, group_size=side.group_size, bits=side.bits)
        mx.eval(codes)
        found.append(tuple(array[:, :rows, :, :keys] for array in codes))
    return StoredKV(found[0], found[1], (side, side))


def numbers(arrays: tuple[mx.array, ...], side: Side) -> Floats:
    """What codes say, by NumPy: [rows, kv_heads, keys, dim]."""
    assert side.bits is not None
    codes, scales, biases = (np.array(a.astype(t)) for a, t in zip(arrays, FORMS, strict=True))
    shifts = np.arange(0, 32, side.bits, dtype=np.uint32)
    each = (codes[0][..., None] >> shifts) & (2**side.bits - 1)
    wide = each.reshape(*codes.shape[1:-1], -1).astype(np.float64)
    by, more = (np.repeat(part[0], side.group_size or 1, axis=-1) for part in (scales, biases))
    return np.asarray(wide * by + more)


FORMS = (mx.uint32, mx.float32, mx.float32)


def expected(queries: mx.array, kv: StoredKV, plan: AttendPlan) -> Floats:
    """Attention of floats, by NumPy: [rows, heads, T, dim]."""
    keys, values = (
        numbers(part, side) for part, side in zip((kv.keys, kv.values), kv.sides, strict=True)
    )
    repeats = queries.shape[1] // keys.shape[1]
    asked = np.array(queries.astype(mx.float32)).astype(np.float64) * plan.scale
    scores = asked @ np.repeat(keys, repeats, axis=1).swapaxes(-1, -2)
    if isinstance(plan.mask, mx.array):
        scores = np.where(np.array(plan.mask), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    if plan.sinks is not None:
        sinks = np.array(plan.sinks.astype(mx.float32))[None, :, None, None]
        total = total + np.exp(sinks - top)
    return np.asarray(weights @ np.repeat(values, repeats, axis=1) / total)


def asked_of(rows: int, heads: int, tokens: int, dim: int, dtype: mx.Dtype) -> mx.array:
    """Queries as models give them: [rows, heads, tokens, dim], turned."""
    noise = mx.random.normal((rows, tokens, heads, dim), key=mx.random.key(2))
    return noise.astype(dtype).swapaxes(1, 2)


def seen(rows: int, tokens: int, keys: int) -> mx.array:
    """A mask of which each query sees some keys, and of the second part none."""
    shown = mx.random.uniform(shape=(rows, 1, tokens, keys), key=mx.random.key(3)) < 0.6
    place = mx.arange(keys)
    return ((place == 0) | shown) & ~((place >= PART) & (place < 2 * PART))


@pytest.mark.parametrize(
    ("shape", "side", "dtype"),
    [
        ((2, 2, 4, 1, 300), Side(128, 4, 64), mx.bfloat16),
        ((3, 2, 1, 1, 64), Side(64, 4, 64), mx.float32),
        ((1, 1, 8, 1, 1023), Side(128, 4, 64), mx.float16),
        ((2, 2, 4, 5, 513), Side(128, 4, 64), mx.bfloat16),
        ((2, 2, 2, 2, 700), Side(64, 8, 32), mx.float32),
        ((2, 1, 3, 1, 320), Side(96, 4, 32), mx.float32),
        ((1, 2, 20, 1, 300), Side(128, 8, 128), mx.float16),
        ((2, 4, 2, 1, 1), Side(64, 4, 32), mx.float32),
        ((1, 1, 1, 1, 3000), Side(512, 4, 64), mx.bfloat16),
    ],
)
def test_kernels_attend_codes_as_floats_are_attended(
    shape: tuple[int, int, int, int, int], side: Side, dtype: mx.Dtype
) -> None:
    rows, kv_heads, repeats, tokens, keys = shape
    kv = stored(rows, kv_heads, keys, side, dtype)
    queries = asked_of(rows, kv_heads * repeats, tokens, side.dim, dtype)
    sinks = mx.random.normal((kv_heads * repeats,), key=mx.random.key(4)).astype(dtype)
    scale, mask = 1 / math.sqrt(side.dim), seen(rows, tokens, keys)

    for some, more in ((None, None), (mask, None), (mask, sinks)):
        plan = AttendPlan("packed", scale, some, more, out_dtype=mx.float32)
        wanted = expected(queries, kv, plan)
        error = np.abs(np.array(attend_fused(queries, kv, plan)) - wanted).max()
        assert error < 1e-4 * wanted.std()
        # And they are who is asked.
        assert mx.array_equal(attend(queries, kv, plan), attend_fused(queries, kv, plan))


def test_a_row_is_attended_as_it_is_alone_whoever_is_beside_it() -> None:
    kv, queries = stored(8, 2, 1000, *OF_ONE), asked_of(8, 8, 1, 128, mx.bfloat16)
    lengths = (1000, 3, 257, 256, 511, 700, 900, 64)
    mask = (mx.arange(1000) < mx.array(lengths)[:, None])[:, None, None]
    together = attend(queries, kv, AttendPlan("packed", 0.09, mask))

    for row, length in enumerate(lengths):
        keys, values = (
            tuple(array[:, row : row + 1, :, :length] for array in part)
            for part in (kv.keys, kv.values)
        )
        own = StoredKV(keys, values, kv.sides)
        alone = attend(queries[row : row + 1], own, AttendPlan("packed", 0.09))
        assert mx.array_equal(alone[0], together[row])


OF_ONE = Side(128, 4, 64), mx.bfloat16


@pytest.mark.parametrize("number", [float, np.float64, lambda scale: np.float32(scale)])
def test_scores_are_scaled_by_whatever_is_a_number(number: Callable[[float], Any]) -> None:
    kv, queries = stored(1, 2, 64, *OF_ONE), asked_of(1, 8, 1, 128, mx.bfloat16)
    scales = (number(0.125), 0.125, 0.25)
    given, plain, other = (attend(queries, kv, AttendPlan("packed", each)) for each in scales)

    assert mx.array_equal(given, plain)
    assert not mx.array_equal(other, plain)


@pytest.mark.parametrize("tokens", [1, 3])
def test_what_rows_share_is_joined_with_what_is_their_own(tokens: int) -> None:
    kv, queries = stored(4, 2, 700, *OF_ONE), asked_of(4, 12, tokens, 128, mx.bfloat16)
    keys, values = (
        tuple(mx.broadcast_to(array[:, :1], array.shape) for array in part)
        for part in (kv.keys, kv.values)
    )
    alike = StoredKV(keys, values, kv.sides)
    prefix = tuple(floats[:1, :, :300] for floats in alike.floats())
    plan = AttendPlan("packed", 0.09, seen(4, tokens, 700), out_dtype=mx.float32)
    sees = plan.mask
    assert isinstance(sees, mx.array)
    plan = AttendPlan("packed", 0.09, sees | (mx.arange(700) < 300), out_dtype=mx.float32)

    found = np.array(attend_together(queries, alike, prefix, plan))

    wanted = expected(queries, alike, plan)
    assert np.abs(found - wanted).max() < 1e-4 * wanted.std()


@pytest.mark.parametrize(
    ("side", "wanted"),
    [
        (Side(128, 4, 64), True),
        (Side(512, 8, 64), True),
        (Side(1024, 4, 64), True),
        (Side(576, 8, 64), False),
        (Side(128, None, None), False),
    ],
)
def test_kernels_take_codes_whose_words_are_no_more_than_threads(side: Side, wanted: bool) -> None:
    codes = stored(1, 1, 2, Side(64, 4, 64), mx.float32)
    floats = (mx.zeros((1, 1, 1, 2, side.dim)),)
    values = stored(1, 1, 2, side, mx.float32).values if side.bits else floats

    assert fits(StoredKV(codes.keys, values, (codes.sides[0], side))) is wanted
    # Codes that are kept as floats are no codes.
    assert not fits(StoredKV(codes.keys[:1], codes.values[:1], codes.sides))
