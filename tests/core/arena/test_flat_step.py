"""Rows that take different numbers of tokens in one forward are as alone, to the bit."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import mlx.core as mx
import pytest
from makers import LoadFamily, LoadGrid, prompts_of
from seeded import bug, seeded

from kvactors.core.arena.arena import Arena
from kvactors.core.arena.flat_step import FlatStep
from kvactors.core.arena.wire import to_raw
from kvactors.core.attention.policy import AttentionPolicy
from kvactors.core.cache.slots import SlotTable
from kvactors.core.engine.runner import new_arena
from kvactors.core.model.load import LoadedModel
from kvactors.core.testing.family_args import WINDOW

# Full attention, sinks and windows, windows of another kind, experts.
FAMILIES = ("llama", "qwen3", "gpt_oss", "gemma3_text", "qwen3_moe")
# Of several slabs; at a window, and where its ring is full.
LENGTHS = (9, 300, 40, WINDOW - 2, WINDOW + 300, 1)
ROUNDS = ([1, 5, 1, 1, 3, 2], [1] * 6, [7, 1, 1, 64, 1, 16], [2, 2, 2, 2, 2, 2])


def filled(loaded: LoadedModel, prompt: Sequence[int]) -> Arena:
    """An arena with one row of this prompt, fed in pieces that a ring has room for."""
    arena = new_arena(loaded)
    arena.add_row(0, len(prompt))
    for start in range(0, len(prompt), 200):
        arena.forward(loaded.model, mx.array([prompt[start : start + 200]]))
        arena.evaluate()
    return arena


def batched(loaded: LoadedModel, prompts: Sequence[Sequence[int]]) -> tuple[Arena, list[int]]:
    """The prompts' rows in one arena, and whose each row is."""
    arena, order = new_arena(loaded), list[int]()
    for index, prompt in enumerate(prompts):
        order.insert(arena.take(filled(loaded, prompt), 0), index)
    return arena, order


def same_as_alone(
    loaded: LoadedModel,
    lengths: Sequence[int] = LENGTHS,
    rounds: Sequence[Sequence[int]] = ROUNDS,
) -> None:
    prompts = prompts_of(lengths, seed=5)
    arenas = [filled(loaded, prompt) for prompt in prompts]
    together, order = batched(loaded, prompts)
    for number, counts in enumerate(rounds):
        new = prompts_of(counts, seed=number + 9)
        flat = mx.array([token for index in order for token in new[index]])
        logits = together.forward_flat(loaded.model, flat, [counts[index] for index in order])
        ends = [0, *accumulate(counts[index] for index in order)]
        for index, (begin, end) in zip(order, pairwise(ends), strict=True):
            alone = arenas[index].forward(loaded.model, mx.array([new[index]]))[0]
            assert mx.array_equal(logits[begin:end], alone), f"row {index} in round {number}"
    for row, index in enumerate(order):
        length = together.table.lengths[row]
        start = max(0, length - 20)
        ours = to_raw(together.export(row, start, length))
        assert ours == to_raw(arenas[index].export(0, start, length))


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_flat_step_are_as_alone(load_family: LoadFamily, family: str) -> None:
    same_as_alone(load_family(family))


@pytest.mark.parametrize("bits", [8, None])
def test_in_other_precisions_too(load_grid: LoadGrid, bits: int | None) -> None:
    same_as_alone(load_grid(bits))


@pytest.mark.parametrize("family", ["gpt_oss", "gemma3_text"])
def test_rows_whose_ring_ends_within_a_step_are_as_alone(
    load_family: LoadFamily, family: str
) -> None:
    loaded = load_family(family)
    (cells,) = {layer.cells for layer in loaded.spec.layers if layer.cells is not None}

    # The first goes over the end of its ring in the first step, the second in the last one.
    same_as_alone(loaded, (cells - 3, cells - 9, 40), ([7, 1, 3], [1, 1, 1], [2, 9, 1]))


def test_tokens_that_were_taken_back_leave_no_trace(load_family: LoadFamily) -> None:
    loaded = load_family("gpt_oss")
    prompts = prompts_of((WINDOW + 9, 20), seed=3)
    together, order = batched(loaded, prompts)
    arenas = [filled(loaded, prompts[index]) for index in order]

    together.forward_flat(loaded.model, mx.array([5, 6, 7, 8, 9]), [4, 1])
    together.cut(0, together.table.lengths[0] - 3)

    for arena, token in zip(arenas, (5, 9), strict=True):
        arena.forward(loaded.model, mx.array([[token]]))
    logits = together.forward(loaded.model, mx.array([[3], [4]]))
    for row, (arena, token) in enumerate(zip(arenas, (3, 4), strict=True)):
        assert mx.array_equal(logits[row], arena.forward(loaded.model, mx.array([[token]]))[0])


def test_codes_that_wait_are_not_written_over_those_that_took_their_place(
    load_grid: LoadGrid,
) -> None:
    loaded = load_grid()
    loaded = replace(loaded, policy=AttentionPolicy(unpack=True))
    held = []
    for floats in (True, False):
        arena, _ = batched(loaded, prompts_of((9, 20), seed=3))
        arena.floats = floats
        # The first step shows that floats may be kept.
        arena.forward(loaded.model, mx.array([[1], [2]]))
        for taken, token in ((1, 10), (3, 20), (2, 30), (4, 40)):
            length = arena.table.lengths[0]
            arena.forward_flat(loaded.model, mx.arange(token, token + 5), [4, 1])
            arena.cut(0, length + taken)
        held.append((arena.float_bytes, to_raw(arena.export(0, 0, arena.table.lengths[0]))))

    (kept, ours), (missing, theirs) = held
    assert (kept, missing > 0) == (0, True)
    assert ours == theirs


def test_a_token_that_sees_one_too_many_is_found(load_family: LoadFamily) -> None:
    @bug(FlatStep, "_reach")
    def sees_the_next(true: Any) -> Any:
        def reach(step: FlatStep, index: int, layer: Any) -> Any:
            found = true(step, index, layer)
            mask = mx.concatenate([found.mask[..., :1], found.mask[..., :-1]], axis=-1)
            return type(found)(found.extent, found.cells, lambda: mask)

        return reach

    with seeded(sees_the_next), pytest.raises(AssertionError):
        same_as_alone(load_family("llama"))


def test_a_token_in_its_neighbours_cell_is_found(load_family: LoadFamily) -> None:
    @bug(FlatStep, "__init__")
    def one_row(true: Any) -> Any:
        def init(step: FlatStep, table: SlotTable, rows: Any, **options: Any) -> None:
            true(step, table, [rows[0], *rows[:-1]], **options)

        return init

    with seeded(one_row), pytest.raises((AssertionError, ValueError)):
        same_as_alone(load_family("llama"))


def test_models_with_states_have_no_flat_step(load_family: LoadFamily) -> None:
    plain, latent, states = "gemma2", "deepseek_v3", "qwen3_next"
    assert not any(load_family(family).spec.flat for family in (plain, latent, states))
    assert all(load_family(family).spec.flat for family in FAMILIES)
