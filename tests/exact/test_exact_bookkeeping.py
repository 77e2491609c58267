"""Tier 1 of exactness: on grid models, batched, staggered, chunked, cancelled and restored
equal alone bit for bit, with no tolerance [design, Exactness]."""

from typing import Any

import mlx.core as mx
import pytest
from makers import LoadGrid, MakeEngine, prompts_of

from kvactors.core.arena.arena import Arena
from kvactors.core.arena.wire import from_raw, to_raw
from kvactors.core.engine.runner import new_arena
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine

LENGTHS = (5, 40, 300, 17, 1, 2, 255, 256, 257, 64, 63, 65)
SAMPLING = Sampling(max_tokens=12)


def alone(make_engine: MakeEngine, loaded: LoadedModel, prompt: list[int], **kw: Any) -> list[int]:
    request = make_request("alone", [], prompt, kw.get("sampling", SAMPLING))
    end = run_engine(make_engine(loaded), [(0, request)])["alone"]
    return end.request.generated


@pytest.mark.slow
@pytest.mark.parametrize("kv_bits", [4, 8, None])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_ragged_batch_decodes_what_each_row_decodes_alone(
    load_grid: LoadGrid, make_engine: MakeEngine, kv_bits: int | None, kind: str
) -> None:
    loaded = load_grid(kv_bits, kind)
    prompts = prompts_of(LENGTHS[:8])
    expected = [alone(make_engine, loaded, prompt) for prompt in prompts]

    arrivals = [(0, make_request(f"{i}", [], p, SAMPLING)) for i, p in enumerate(prompts)]
    ends = run_engine(make_engine(loaded), arrivals)

    assert [ends[f"{i}"].request.generated for i in range(len(prompts))] == expected
    assert len({tuple(tokens) for tokens in expected}) > 1


def test_a_turn_asked_again_at_the_end_of_an_extent_gives_the_same_answer(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine = make_engine(load_grid())
    prompt = prompts_of((129,))[0]

    first = run_engine(engine, [(0, make_request("a", [], prompt, SAMPLING))])["a"]
    other = make_request("b", [], prompt[:20], Sampling(max_tokens=40))
    once_more = make_request("a", prompt[:-1], prompt[-1:], SAMPLING)
    again = run_engine(engine, [(0, other), (3, once_more)])["a"]

    assert again.request.cache_state == "hot"
    assert again.request.generated == first.request.generated


@pytest.mark.parametrize("kv_bits", [4, None])
def test_rows_that_join_and_leave_at_any_step_do_not_change_each_other(
    load_grid: LoadGrid, make_engine: MakeEngine, kv_bits: int | None
) -> None:
    loaded = load_grid(kv_bits)
    prompts = prompts_of(LENGTHS, seed=1)
    budgets = [Sampling(max_tokens=4 + 3 * i) for i in range(len(prompts))]
    expected = [
        alone(make_engine, loaded, prompt, sampling=sampling)
        for prompt, sampling in zip(prompts, budgets, strict=True)
    ]

    arrivals = [
        (3 * i, make_request(f"{i}", [], prompt, sampling))
        for i, (prompt, sampling) in enumerate(zip(prompts, budgets, strict=True))
    ]
    ends = run_engine(make_engine(loaded, max_batch=5), arrivals)

    assert [ends[f"{i}"].request.generated for i in range(len(prompts))] == expected


def test_a_cancelled_row_leaves_its_neighbours_bit_identical(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    loaded = load_grid()
    prompts = prompts_of((30, 70, 300), seed=2)
    expected = [alone(make_engine, loaded, prompt) for prompt in prompts]
    engine = make_engine(loaded)

    def cancel_the_middle(step: int) -> None:
        if step == 6:
            engine.cancel("1", 1)

    arrivals = [(0, make_request(f"{i}", [], p, SAMPLING, serial=i)) for i, p in enumerate(prompts)]
    ends = run_engine(engine, arrivals, cancel_the_middle)

    assert ends["1"].reason == "cancelled"
    cut = ends["1"].request.generated
    assert cut == expected[1][: len(cut)]
    assert [ends[i].request.generated for i in "02"] == [expected[0], expected[2]]


@pytest.mark.parametrize("chunk", [1, 31, 64, 255, 256, 257, 600])
def test_every_chunk_size_caches_the_same_bytes(load_grid: LoadGrid, chunk: int) -> None:
    loaded = load_grid()
    prompt = prompts_of((600 if chunk > 1 else 80,), seed=3)[0]

    whole, logits = prefilled(loaded, prompt, len(prompt))
    pieces, chunked_logits = prefilled(loaded, prompt, chunk)

    assert same_bytes(whole, pieces, len(prompt))
    assert mx.array_equal(logits, chunked_logits)


def prefilled(loaded: LoadedModel, prompt: list[int], chunk: int) -> tuple[Arena, mx.array]:
    arena = new_arena(loaded)
    arena.add_row(0, len(prompt))
    logits = mx.zeros(())
    for start in range(0, len(prompt), chunk):
        logits = arena.forward(loaded.model, mx.array([prompt[start : start + chunk]]))
        mx.eval(logits)
        arena.evaluate()
    return arena, logits[0, -1]


def same_bytes(first: Arena, second: Arena, length: int) -> bool:
    pairs = zip(first.export(0, 0, length).groups, second.export(0, 0, length).groups, strict=True)
    return all(bool(mx.array_equal(a[name], b[name])) for a, b in pairs for name in a)


@pytest.mark.parametrize("kv_bits", [4, 8, None])
def test_a_second_turn_after_a_restore_from_bytes_equals_one_that_never_stopped(
    load_grid: LoadGrid, make_engine: MakeEngine, kv_bits: int | None
) -> None:
    loaded = load_grid(kv_bits)
    first, second = prompts_of((300, 20), seed=4)
    engine = make_engine(loaded, stored=True)
    end = run_engine(engine, [(0, make_request("a", [], first, SAMPLING))])["a"]
    known = end.request.tokens
    hot = run_engine(engine, [(0, make_request("a", known, second, SAMPLING))])["a"]
    assert hot.request.cache_state == "hot"

    reopened = make_engine(loaded, stored=True)
    request = make_request("a", known, second, SAMPLING)
    reopened.submit(request)
    reopened.step()
    reopened.provide("a", end.exported)
    warm = run_engine(reopened, [])["a"]

    assert request.cache_state == "warm"
    assert request.kept == len(known) - 1
    assert warm.request.generated == hot.request.generated


@pytest.mark.parametrize("kv_bits", [4, 8, None])
def test_restored_kv_is_byte_identical_to_what_was_saved(
    load_grid: LoadGrid, make_engine: MakeEngine, kv_bits: int | None
) -> None:
    loaded = load_grid(kv_bits)
    first, second = prompts_of((300, 20), seed=6)
    end = run_engine(
        make_engine(loaded, stored=True), [(0, make_request("a", [], first, SAMPLING))]
    )["a"]

    pieces = [from_raw(part.tensors, part.start, part.end, loaded.spec) for part in end.exported]
    engine = make_engine(loaded, stored=True)
    request = make_request("a", end.request.tokens, second, SAMPLING)
    engine.submit(request)
    engine.step()
    engine.provide("a", end.exported)
    again = run_engine(engine, [])["a"]

    assert [to_raw(piece) for piece in pieces] == [part.tensors for part in end.exported]
    merged = again.exported[0]
    old = end.exported[-1]
    assert (merged.start, old.start) == (old.end, 256)


def test_kv_of_another_history_is_not_adopted(load_grid: LoadGrid, make_engine: MakeEngine) -> None:
    loaded = load_grid()
    first, second = prompts_of((300, 20), seed=5)
    end = run_engine(
        make_engine(loaded, stored=True), [(0, make_request("a", [], first, SAMPLING))]
    )["a"]
    other = [(token + 1) % 128 for token in end.request.tokens]

    engine = make_engine(loaded, stored=True)
    request = make_request("a", other, second, SAMPLING)
    engine.submit(request)
    engine.step()
    engine.provide("a", end.exported)
    run_engine(engine, [])

    assert (request.cache_state, request.kept) == ("cold", 0)
