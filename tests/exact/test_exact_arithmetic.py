"""Tier 2 of exactness: one step from identical cache bytes, against mlx-lm's own quantized
attention and a float64 NumPy reference. At most 1e-4 of the deviation, in float32."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from makers import load_as_meant
from oracle import mlx_lm_caches, numpy_attention

from kvactors.core.arena.arena import Arena
from kvactors.core.arena.batch_cache import BatchQuantizedKVCache, enable_in_mlx_lm
from kvactors.core.arena.cells import Cells
from kvactors.core.arena.pools import Pool
from kvactors.core.attention import attend as attention
from kvactors.core.attention.plan import AttendPlan
from kvactors.core.attention.policy import AttentionPath, AttentionPolicy
from kvactors.core.attention.products_cpu import LEAST_KEYS, LEAST_QUERIES
from kvactors.core.cache.spec import LayerSpec, Side
from kvactors.core.model.load import LoadedModel
from kvactors.core.model.options import ModelOptions
from kvactors.core.quant import codec
from kvactors.core.quant.device import on_cpu, second_stream
from kvactors.core.testing.models import PlainTokenizer, tiny_model

LIMIT = 1e-4
LENGTHS = (3, 70, 300)


def random_model(kind: str, kv_bits: int | None, seed: int = 0) -> LoadedModel:
    options = ModelOptions(kv_bits=kv_bits, attention="packed")
    return load_as_meant(kind, lambda: (tiny_model(kind, seed=seed), PlainTokenizer()), options)


@pytest.mark.parametrize("attention", ["packed", "dequantize"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("bits", [4, 8])
def test_one_step_from_the_same_bytes_agrees_with_mlx_lm(
    kind: str, bits: int, attention: str
) -> None:
    loaded = random_model(kind, bits)
    rng = np.random.default_rng(0)
    rows: list[list[Any]] = []
    for length in LENGTHS:
        caches = mlx_lm_caches(loaded)
        mx.eval(loaded.model(mx.array([rng.integers(1, 128, length).tolist()]), cache=caches))
        rows.append(caches)
    enable_in_mlx_lm(attention)
    batch = [
        BatchQuantizedKVCache.merge([caches[layer] for caches in rows])
        for layer in range(len(loaded.spec.layers))
    ]
    enable_in_mlx_lm("auto")

    together = loaded.model(mx.array([[7], [8], [9]]), cache=batch)[:, -1]
    apart = [
        loaded.model(mx.array([[token]]), cache=caches)[0, -1]
        for token, caches in zip((7, 8, 9), rows, strict=True)
    ]

    for ours, theirs in zip(together, apart, strict=True):
        deviation = float(mx.sqrt(mx.var(theirs)))
        assert float(mx.abs(ours - theirs).max()) <= LIMIT * deviation


@pytest.mark.parametrize("path", ["packed", "dequantize", "unpack"])
@pytest.mark.parametrize("bits", [4, 8, None])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(4, 4, 64), (8, 2, 64), (4, 1, 96)], ids=str)
def test_attention_agrees_with_float64_numpy(
    shape: tuple[int, int, int], dtype: str, bits: int | None, path: AttentionPath
) -> None:
    heads, kv_heads, dim = shape
    group = None if bits is None else (64 if dim % 64 == 0 else 32)
    layer = LayerSpec("full", kv_heads, dim, bits, group, dtype)
    key = mx.random.split(mx.random.key(0), 3)
    kind = getattr(mx, dtype)
    # As floats codes are taken of enough keys, and of their sums for enough queries.
    length, tokens = (130, 5) if path != "unpack" else (LEAST_KEYS + 34, LEAST_QUERIES)
    extent = length + 62
    pool = Pool(layer, 1, extent + 64)
    keys = mx.random.normal((1, kv_heads, length, dim), key=key[0]).astype(kind)
    values = mx.random.normal((1, kv_heads, length, dim), key=key[1]).astype(kind)
    queries = mx.random.normal((1, heads, tokens, dim), key=key[2]).astype(kind)
    pool.write(keys, values, Cells(mx.arange(length)[None], 0))
    at = mx.arange(length - tokens, length)
    mask = (mx.arange(extent) <= at[:, None])[None, None]

    plan = AttendPlan(path, dim**-0.5, mask)
    out = attention.attend(queries, pool.read(1, extent), plan)

    held = pool.read(1, length)
    stored_keys, stored_values = stored(held.keys, layer), stored(held.values, layer)
    reference = numpy_attention(
        np.array(queries[0].astype(mx.float32)),
        stored_keys,
        stored_values,
        dim**-0.5,
        length - tokens,
    )
    # The result is rounded to the model's dtype once, at the end.
    rounding = {"float32": 0.0, "float16": 2**-11, "bfloat16": 2**-8}[dtype]
    error = np.abs(np.array(out[0].astype(mx.float32)) - reference)
    assert (error <= LIMIT * reference.std() + rounding * np.abs(reference)).all()


@pytest.mark.skipif(not on_cpu(), reason="a second stream is another core of the CPU")
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("bits", [4, 8, None])
def test_half_of_the_rows_on_a_second_stream_have_the_bits_that_they_have_on_one(
    bits: int | None, sinks: bool
) -> None:
    used: list[mx.ThreadLocalStream] = []

    def watched() -> mx.ThreadLocalStream:
        used.append(stream := second_stream())
        return stream

    layer = LayerSpec("full", 2, 64, bits, None if bits is None else 64, "float32")
    pool = Pool(layer, 6, 2048)
    key = mx.random.split(mx.random.key(0), 4)
    keys, values = (mx.random.normal((6, 2, 2048, 64), key=key[n]) for n in range(2))
    pool.write(keys, values, Cells(mx.broadcast_to(mx.arange(2048), (6, 2048)), 0))
    queries = mx.random.normal((6, 8, 1, 64), key=key[2])
    mask = mx.arange(2000) <= mx.array([1999, 1203, 17, 0, 1500, 64])[:, None, None, None]
    more = mx.random.normal((8,), key=key[3]) if sinks else None

    def attend(second: Callable[[], mx.ThreadLocalStream] | None) -> mx.array:
        plan = AttendPlan("unpack", 0.125, mask, more, second=second)
        return attention.attend(queries, pool.read(6, 2000, floats=True), plan)

    halved = attend(watched)
    assert used

    assert mx.array_equal(halved, attend(None))
    assert len(used) == 1


def stored(arrays: tuple[mx.array, ...], layer: LayerSpec) -> np.ndarray:
    """What the pool holds, in float."""
    if layer.bits is None:
        return np.array(arrays[0][0, 0].astype(mx.float32))
    codes, scales, biases = arrays
    wide = mx.dequantize(
        codes,
        scales.astype(mx.float32),
        biases.astype(mx.float32),
        group_size=layer.group_size,
        bits=layer.bits,
    )
    return np.array(wide[0, 0])


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("dim", "group"), [(32, 32), (96, 32), (128, 64)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_codes_become_the_very_numbers_that_mlx_makes_of_them(
    bits: int, dim: int, group: int, dtype: Any
) -> None:
    slab = mx.random.normal((2, 3, 2, 80, dim), key=mx.random.key(bits)).astype(dtype)
    stored = tuple(array[1:, :2, :, :65] for array in mx.quantize(slab, group, bits))

    floats = codec.dequantize(stored, Side(dim, bits, group), mx.float32)

    codes, scales, biases = (stored[0], *(array.astype(mx.float32) for array in stored[1:]))
    assert mx.array_equal(floats, mx.dequantize(codes, scales, biases, group, bits))


def test_packed_and_dequantized_agree_on_a_chunk() -> None:
    loaded = random_model("llama", 4)
    prompt = mx.array([np.random.default_rng(1).integers(1, 128, 300).tolist()])
    logits = {}
    for mode in ("packed", "dequantize"):
        arena = Arena(loaded.spec, AttentionPolicy(mode), max_slabs=1)
        arena.add_row(0, 300)
        logits[mode] = arena.forward(loaded.model, prompt)[0, 0]

    difference = float(mx.abs(logits["packed"] - logits["dequantize"]).max())

    assert difference <= LIMIT * float(mx.sqrt(mx.var(logits["packed"])))


def test_the_first_token_of_the_context_changes_what_is_decided_later(
    load_grid: Callable[..., LoadedModel],
) -> None:
    loaded = load_grid()
    rest = np.random.default_rng(2).integers(1, 128, 60).tolist()

    logits = [
        loaded.model(mx.array([[first, *rest]]), cache=mlx_lm_caches(loaded))[0, -1]
        for first in (3, 4)
    ]

    deviation = float(mx.sqrt(mx.var(logits[0])))
    assert float(mx.abs(logits[0] - logits[1]).max()) > 0.003 * deviation
