"""What a cache says of its mask, and that few steps need one."""

from typing import Any

import mlx.core as mx
import pytest
from seeded import bug, seeded

from kvactors.core.arena import kv_layer
from kvactors.core.arena.arena import Arena
from kvactors.core.arena.cells import Cells
from kvactors.core.arena.kv_layer import KVLayer
from kvactors.core.arena.pools import Pool
from kvactors.core.arena.step import EvenStep
from kvactors.core.attention import attend as attending
from kvactors.core.attention.attend_spec import AttendSpec
from kvactors.core.attention.blockwise_cpu import attend_in_blocks
from kvactors.core.attention.plan import AttendPlan
from kvactors.core.attention.policy import AttentionMode, AttentionPath, AttentionPolicy
from kvactors.core.cache.slabs import SharedPieces
from kvactors.core.cache.spec import LayerSpec, ModelCacheSpec

LAYER = LayerSpec("full", 2, 64, 4, 64, "float32")
KEYS, TOKENS = 200, 7


def random(*shape: int, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def filled() -> Pool:
    pool = Pool(LAYER, 1, 256)
    new = random(1, 2, KEYS, 64), random(1, 2, KEYS, 64, seed=1)
    pool.write(*new, Cells(mx.arange(KEYS)[None], 0))
    return pool


@pytest.mark.parametrize("kind", ["none", "causal"])
@pytest.mark.parametrize("path", ["packed", "unpack", "dequantize"])
def test_a_kind_of_mask_says_what_an_array_says(path: AttentionPath, kind: str) -> None:
    tokens = 1 if kind == "none" else TOKENS
    spec = AttendSpec.of_run(tokens)
    rows = [[key <= KEYS - tokens + token for key in range(KEYS)] for token in range(tokens)]
    explicit = AttendSpec(mx.array(rows)[None, None])
    queries, pool = random(1, 4, tokens, 64, seed=2), filled()

    found, expected = (
        attending.attend(queries, pool.read(1, KEYS), one.plan(path, 0.125))
        for one in (spec, explicit)
    )

    assert (spec.kind, explicit.kind) == (kind, "explicit")
    assert mx.allclose(found, expected, atol=1e-6)


def test_many_causal_queries_are_taken_block_by_block() -> None:
    pool, queries = filled(), random(1, 4, KEYS, 64, seed=2)
    keys, values = pool.read(1, KEYS).floats()
    every = mx.arange(KEYS)[:, None] >= mx.arange(KEYS)

    found, expected = (
        attend_in_blocks(queries, lambda: (keys, values), 0.125, mask, block_bytes=50_000)
        for mask in ("causal", every[None, None])
    )

    assert mx.array_equal(found, expected)


@pytest.mark.parametrize("path", ["packed", "unpack", "dequantize"])
@pytest.mark.parametrize("stored", [None, 4])
def test_the_dtype_of_the_result_is_not_that_of_what_is_stored(
    path: AttentionPath, stored: int | None
) -> None:
    layer = LayerSpec("full", 2, 64, stored, stored and 64, "float16")
    pool = Pool(layer, 1, 64)
    new = random(1, 2, 5, 64).astype(mx.float16)
    pool.write(new, new, Cells(mx.arange(5)[None], 0))
    queries = random(1, 4, 1, 64).astype(mx.float16)

    kinds = [
        attending.attend(
            queries, pool.read(1, 5), AttendSpec(None, out_dtype).plan(path, 0.125)
        ).dtype
        for out_dtype in (None, mx.float32, mx.bfloat16)
    ]

    assert kinds == [mx.float16, mx.float32, mx.bfloat16]


def test_a_mask_that_would_be_added_is_none() -> None:
    added = mx.where(mx.arange(KEYS) < 5, 0.0, -mx.inf)

    with pytest.raises(AssertionError):
        AttendSpec(added[None, None, None])


POLICIES = {
    "packed": AttentionPolicy("packed"),
    "unpack": AttentionPolicy(unpack=True),
    "dequantize": AttentionPolicy("dequantize"),
    "reproducible": AttentionPolicy(reproducible=True),
}


def seen(policy: str, lengths: list[int], width: int) -> Any:
    """What a step of so many tokens in rows of these lengths is attended with, the keys that it
    reads, and whether each row's result is what it is alone."""
    plans: list[tuple[AttendPlan, int]] = []

    @bug(kv_layer, "attend")
    def noted(true: Any) -> Any:
        def attend(queries: mx.array, stored: Any, plan: AttendPlan) -> mx.array:
            plans.append((plan, stored.keys[0].shape[-2]))
            result: mx.array = true(queries, stored, plan)
            return result

        return attend

    with seeded(noted):
        together, *alone = [
            attended(POLICIES[policy], held, width) for held in (lengths, *([n] for n in lengths))
        ]
    return *plans[0], bool(mx.allclose(together, mx.concatenate(alone), atol=1e-5))


def attended(
    policy: AttentionPolicy,
    lengths: list[int],
    width: int,
    *,
    alike: SharedPieces = (),
    out_dtype: mx.Dtype | None = None,
) -> mx.array:
    """A step of so many tokens in rows of these lengths, which begin with pieces that are
    `alike`."""
    arena = Arena(ModelCacheSpec((LAYER,), 128, 8192), policy, max_slabs=1)
    layer = arena.layers[0]
    assert isinstance(layer, KVLayer)
    for length in lengths:
        row = arena.add_row(length, 300, alike)
        layer.rows.pools[0].load(row, 0, codes_of(random(1, 2, length, 64, seed=length)))
    arena.begin(EvenStep(arena.table, width))
    new = mx.concatenate([random(1, 2, width, 64, seed=length + 1000) for length in lengths])
    layer.update_and_fetch(new, new)
    queries = mx.concatenate([new, new], 1)
    return layer.attend(queries, None, scale=0.2, sinks=None, out_dtype=out_dtype)


def codes_of(keys: mx.array) -> dict[str, mx.array]:
    pool = Pool(LAYER, 1, keys.shape[2])
    pool.write(keys, keys, Cells(mx.arange(keys.shape[2])[None], 0))
    return pool.export(0, 0, keys.shape[2])


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("policy", ["unpack", "dequantize"])
@pytest.mark.parametrize("lengths", [[100], [100, 100, 100]], ids=str)
def test_rows_that_end_together_need_no_mask(policy: str, lengths: list[int], width: int) -> None:
    plan, keys, as_alone = seen(policy, lengths, width)

    assert plan.mask == (None if width == 1 else "causal")
    assert keys == 100 + width
    assert as_alone


@pytest.mark.parametrize("policy", ["packed", "reproducible"])
def test_where_a_sum_may_not_depend_on_the_company_the_extent_is_as_ever(policy: str) -> None:
    plan, keys, as_alone = seen(policy, [100], 1)

    assert isinstance(plan.mask, mx.array)
    assert keys == 128
    assert as_alone


@pytest.mark.parametrize("policy", ["packed", "unpack", "dequantize"])
def test_rows_need_a_mask_where_they_do_not_end_together(policy: str) -> None:
    plan, _, as_alone = seen(policy, [100, 99], 1)

    assert isinstance(plan.mask, mx.array)
    assert as_alone


@pytest.mark.parametrize("mode", ["packed", "auto", "dequantize"])
@pytest.mark.parametrize("alike", [(), ((1, 64),)], ids=["apart", "alike"])
def test_a_layer_gives_the_dtype_that_it_is_asked_for(
    mode: AttentionMode, alike: SharedPieces
) -> None:
    policy, together = AttentionPolicy(mode, launch_tokens=1), list[int]()

    @bug(kv_layer, "attend_together")
    def noted(true: Any) -> Any:
        def attend(queries: mx.array, *rest: Any) -> mx.array:
            together.append(len(queries))
            result: mx.array = true(queries, *rest)
            return result

        return attend

    with seeded(noted):
        found = [
            attended(policy, [100] * 8, 1, alike=alike, out_dtype=dtype).dtype
            for dtype in (None, mx.float16)
        ]

    assert found == [mx.float32, mx.float16]
    assert bool(together) == (bool(alike) and mode != "packed")
