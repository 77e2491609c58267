"""BatchQuantizedKVCache by itself: exact merge and extract, rows that leave others alone,
writes in place, and mlx-lm's own BatchGenerator on quantized caches."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from makers import LoadGrid
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import QuantizedKVCache, RotatingKVCache
from oracle import free_run

from kvactors.core.arena.batch_cache import BatchQuantizedKVCache, enable_in_mlx_lm
from kvactors.core.errors import UnsupportedLayer
from kvactors.core.model.load import LoadedModel
from kvactors.core.testing.families import build


def filled(length: int, bits: int = 4, seed: int = 0) -> QuantizedKVCache:
    cache = QuantizedKVCache(group_size=64, bits=bits)
    if length:
        keys = mx.random.split(mx.random.key(seed))
        shape = (1, 2, length, 64)
        cache.update_and_fetch(
            mx.random.normal(shape, key=keys[0]), mx.random.normal(shape, key=keys[1])
        )
    return cache


def equal(first: QuantizedKVCache, second: QuantizedKVCache) -> bool:
    if first.offset != second.offset:
        return False
    pairs = zip([*first.keys, *first.values], [*second.keys, *second.values], strict=True)
    return all(
        bool(mx.array_equal(a[:, :, : first.offset], b[:, :, : first.offset])) for a, b in pairs
    )


def append(batch: BatchQuantizedKVCache, rows: int, tokens: int = 1) -> None:
    noise = mx.random.normal((rows, 2, tokens, 64))
    batch.update_and_fetch(noise, noise)
    mx.eval(batch.state)


@pytest.mark.parametrize("bits", [4, 8])
def test_merge_and_extract_are_exact_to_the_bit(bits: int) -> None:
    caches = [filled(length, bits, seed) for seed, length in enumerate((1, 300, 255, 2500, 64))]

    batch = BatchQuantizedKVCache.merge(caches)

    assert batch.table.lengths == [1, 300, 255, 2500, 64]
    assert all(equal(batch.extract(row), cache) for row, cache in enumerate(caches))


def test_empty_caches_merge_and_fill_later() -> None:
    batch = BatchQuantizedKVCache.merge([filled(0), filled(5), filled(0)])

    append(batch, 3)

    assert [batch.extract(row).offset for row in range(3)] == [1, 6, 1]
    assert BatchQuantizedKVCache.merge([filled(0)]).empty()


def test_caches_of_different_bits_do_not_merge() -> None:
    with pytest.raises(ValueError, match="different"):
        BatchQuantizedKVCache.merge([filled(3, 4), filled(3, 8)])


def test_caches_of_different_dtypes_do_not_merge() -> None:
    half, whole = (QuantizedKVCache(group_size=64, bits=4) for _ in range(2))
    noise = mx.random.normal((1, 2, 3, 64))
    half.update_and_fetch(noise.astype(mx.float16), noise.astype(mx.float16))
    whole.update_and_fetch(noise, noise)

    with pytest.raises(ValueError, match="different layers"):
        BatchQuantizedKVCache.merge([half, whole])


def test_rows_that_join_and_leave_touch_no_other_rows_bytes() -> None:
    batch = BatchQuantizedKVCache.merge([filled(n, seed=n) for n in (40, 300, 7)])
    before = [batch.extract(row) for row in range(3)]

    batch.extend(BatchQuantizedKVCache.merge([filled(2000, seed=9), filled(3, seed=10)]))
    assert all(equal(batch.extract(row), before[row]) for row in range(3))
    batch.filter([0, 2, 4])

    assert equal(batch.extract(0), before[0])
    assert equal(batch.extract(1), before[2])
    assert equal(batch.extract(2), filled(3, seed=10))


def test_a_permuting_filter_keeps_every_rows_bytes() -> None:
    batch = BatchQuantizedKVCache.merge([filled(n, seed=n) for n in (5, 6, 7)])

    batch.filter([2, 0, 1])

    assert [batch.extract(row).offset for row in range(3)] == [7, 5, 6]
    assert equal(batch.extract(0), filled(7, seed=7))


def test_a_step_writes_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = BatchQuantizedKVCache.merge([filled(n, seed=n) for n in (1500, 1400, 1300, 1200)])
    append(batch, 4)
    mx.clear_cache()
    held = mx.get_active_memory()
    mx.reset_peak_memory()

    for _ in range(8):
        append(batch, 4)

    assert mx.get_peak_memory() - held < batch.nbytes / 10


def test_trim_and_padding_move_no_bytes_but_lengths() -> None:
    batch = BatchQuantizedKVCache.merge([filled(40, seed=1), filled(30, seed=2)])
    assert batch.trim(10) == 10
    assert batch.table.lengths == [30, 20]

    batch.prepare(lengths=[5, 2], right_padding=[0, 3])
    append(batch, 2, 5)
    batch.finalize()

    assert batch.table.lengths == [35, 22]
    assert batch.size() == 35


def grid_model(load_grid: LoadGrid) -> LoadedModel:
    enable_in_mlx_lm("packed")
    return load_grid()


def quantized(loaded: LoadedModel) -> list[Any]:
    return [QuantizedKVCache(group_size=64, bits=4) for _ in loaded.spec.layers]


def test_mlx_lms_batch_generator_runs_on_quantized_caches(load_grid: LoadGrid) -> None:
    loaded = grid_model(load_grid)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1, 128, n).tolist() for n in (5, 40, 300, 17)]
    expected = [free_run(loaded, prompt, 16)[0] for prompt in prompts]
    generator = BatchGenerator(loaded.model, max_tokens=16)

    uids = generator.insert(prompts[:3], caches=[quantized(loaded) for _ in range(3)])
    said: dict[int, list[int]] = {uid: [] for uid in uids}
    final: dict[int, list[Any]] = {}
    for step in range(200):
        if step == 6:  # one more while the others decode
            (late,) = generator.insert(prompts[3:], caches=[quantized(loaded)])
            uids, said[late] = [*uids, late], []
        responses = generator.next_generated()
        if not responses:
            break
        for response in responses:
            said[response.uid].append(response.token)
            if response.finish_reason:
                final[response.uid] = response.prompt_cache
    generator.close()

    assert [said[uid] for uid in uids] == expected
    assert all(type(cache) is QuantizedKVCache for cache in final[uids[0]])
    assert final[uids[0]][0].offset == 5 + 16


def test_a_removed_rows_cache_goes_on_where_it_stopped(load_grid: LoadGrid) -> None:
    loaded = grid_model(load_grid)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(1, 128, n).tolist() for n in (30, 70)]
    expected = free_run(loaded, prompts[0], 20)[0]
    generator = BatchGenerator(loaded.model, max_tokens=20)
    uids = generator.insert(prompts, caches=[quantized(loaded) for _ in range(2)])
    said: list[int] = []
    while len(said) < 8:
        said += [r.token for r in generator.next_generated() if r.uid == uids[0]]

    caches, tokens = generator.remove([uids[0]], return_prompt_caches=True)[uids[0]]
    # The generator runs one step ahead: the removed cache already holds the last token.
    assert tokens == [*prompts[0], *said]
    assert {cache.offset for cache in caches} == {len(tokens)}
    for cache in caches:
        cache.trim(1)
    (again,) = generator.insert([said[-1:]], caches=[caches], max_tokens=[12])
    rest: list[int] = []
    while len(rest) < 12:
        rest += [r.token for r in generator.next_generated() if r.uid == again]
    generator.close()

    assert [*said, *rest] == expected


def layered(model: Any, *, windows: bool) -> list[Any]:
    """Quantized caches of a model; those that see a window stay the model's own, with `windows`."""
    return [
        made if windows and isinstance(made, RotatingKVCache) else QuantizedKVCache(32, 4)
        for made in model.make_cache()
    ]


def test_layers_with_a_window_keep_the_models_own_caches_beside_quantized_ones() -> None:
    enable_in_mlx_lm("packed")
    model = build("gemma3_text")
    rng = np.random.default_rng(2)
    prompts = [rng.integers(1, 100, n).tolist() for n in (5, 40, 60)]
    expected = [greedy(model, prompt, layered(model, windows=True)) for prompt in prompts]
    generator = BatchGenerator(model, max_tokens=12)

    uids = generator.insert(prompts, caches=[layered(model, windows=True) for _ in prompts])
    said: dict[int, list[int]] = {uid: [] for uid in uids}
    while responses := generator.next_generated():
        for response in responses:
            said[response.uid].append(response.token)
    generator.close()

    assert [said[uid] for uid in uids] == expected


def test_a_quantized_cache_of_more_than_a_layers_window_is_refused() -> None:
    enable_in_mlx_lm("packed")
    model = build("gemma3_text")
    generator = BatchGenerator(model, max_tokens=12)
    generator.insert([list(range(1, 41))], caches=[layered(model, windows=False)])

    with pytest.raises(UnsupportedLayer, match="last 12 tokens and is given 39"):
        generator.next_generated()


def greedy(model: Any, prompt: list[int], caches: list[Any]) -> list[int]:
    """Twelve tokens by mlx-lm alone."""
    said: list[int] = []
    inputs = prompt
    while len(said) < 12:
        said.append(int(mx.argmax(model(mx.array([inputs]), cache=caches)[0, -1])))
        inputs = said[-1:]
    return said


def test_enabling_twice_and_late_changes_nothing(load_grid: LoadGrid) -> None:
    from mlx_lm.models import base, llama

    enable_in_mlx_lm("packed")
    seam = base.scaled_dot_product_attention
    enable_in_mlx_lm("packed")

    assert base.scaled_dot_product_attention is seam
    assert llama.scaled_dot_product_attention is seam
