"""Tier 1 of exactness: on grid models, batched, staggered, chunked, cancelled and restored
equal alone bit for bit, with no tolerance [design, Exactness]."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvactors.core.arena.arena import Arena
from kvactors.core.arena.wire import from_raw, to_raw
from kvactors.core.cache.segment import Segment
from kvactors.core.engine.engine import Engine
from kvactors.core.engine.runner import new_arena
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.events import Finished
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine

LENGTHS = (5, 40, 300, 17, 1, 2, 255, 256, 257, 64, 63, 65)
SAMPLING = Sampling(max_tokens=12)
MakeEngine = Callable[..., Engine]
LoadGrid = Callable[..., LoadedModel]


def prompts_of(lengths: tuple[int, ...], seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 128, length).tolist() for length in lengths]


def alone(make_engine: MakeEngine, loaded: LoadedModel, prompt: list[int], **kw: Any) -> list[int]:
    request = make_request("alone", [], prompt, kw.get("sampling", SAMPLING))
    end = run_engine(make_engine(loaded), [(0, request)])["alone"]
    return end.request.generated


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


class History:
    """What an agent was told and answered, alone and in company."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.stored: dict[int, Segment] = {}
        self.turn = 0

    def keep(self, exported: tuple[Segment, ...]) -> None:
        """Supersede stored segments as a store does."""
        for part in exported:
            self.stored = {s: p for s, p in self.stored.items() if s < part.start}
            self.stored[part.start] = part


step = st.tuples(
    st.integers(0, 3),
    st.integers(1, 90),
    st.integers(1, 9),
    st.sampled_from(["ask", "ask", "ask", "cancel", "forget"]),
)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(step, min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(0, 99),
    st.sampled_from([4, 8, None]),
)
def test_any_sequence_of_turns_cancels_and_restores_equals_each_agent_alone(
    load_grid: LoadGrid,
    make_engine: MakeEngine,
    rounds: list[list[Any]],
    seed: int,
    kv_bits: int | None,
) -> None:
    loaded = load_grid(kv_bits)
    rng = np.random.default_rng(seed)
    engine = make_engine(loaded, max_batch=3, stored=True)
    histories = [History() for _ in range(4)]

    for actions in rounds:
        arrivals, cancels, chosen = [], {}, {}
        for delay, (agent, length, answers, kind) in enumerate(actions):
            if agent in chosen:
                continue
            history = histories[agent]
            if kind == "forget":
                engine.forget(f"{agent}")
            new = rng.integers(1, 128, length).tolist()
            request = make_request(
                f"{agent}",
                history.tokens,
                new,
                Sampling(max_tokens=answers, temperature=0.7, seed=seed),
                turn=history.turn,
                serial=agent,
            )
            chosen[agent] = (list(request.tokens), answers)
            arrivals.append((2 * delay, request))
            if kind == "cancel":
                cancels[3 * delay + 4] = agent
        ends = run_in_company(engine, arrivals, cancels, histories)
        for agent, (tokens, answers) in chosen.items():
            end, history = ends[f"{agent}"], histories[agent]
            expected = alone_turn(make_engine, loaded, history, tokens, answers, seed, agent)
            got = end.request.generated
            assert got == (expected[: len(got)] if end.reason == "cancelled" else expected)
            history.tokens = end.request.tokens
            history.turn += 1
            history.keep(end.exported)


def run_in_company(
    engine: Engine,
    arrivals: list[Any],
    cancels: dict[int, int],
    histories: list[History],
) -> dict[str, Finished]:
    waiting, ends, at = list(arrivals), {}, 0
    while waiting or engine.busy:
        while waiting and waiting[0][0] <= at:
            engine.submit(waiting.pop(0)[1])
        if at in cancels:
            engine.cancel(f"{cancels[at]}", cancels[at])
        for event in engine.step():
            if isinstance(event, Finished):
                ends[event.request.agent_id] = event
            elif type(event).__name__ == "KVNeeded":
                stored = histories[int(event.agent_id)].stored
                engine.provide(event.agent_id, [stored[start] for start in sorted(stored)])
        engine.check()
        at += 1
    return ends


def alone_turn(
    make_engine: MakeEngine,
    loaded: LoadedModel,
    history: History,
    tokens: list[int],
    answers: int,
    seed: int,
    agent: int,
) -> list[int]:
    sampling = Sampling(max_tokens=answers, temperature=0.7, seed=seed)
    request = make_request(f"{agent}", [], tokens, sampling, turn=history.turn)
    end = run_engine(make_engine(loaded), [(0, request)])[f"{agent}"]
    return end.request.generated
