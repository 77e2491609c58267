"""One suite over every kind of layer cache: on grid models, batched, staggered, chunked,
cancelled, evicted and restored equal alone, bit for bit [design, Exactness]."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from kvactors.core.arena.arena import Arena
from kvactors.core.cache.segment import Segment
from kvactors.core.engine.engine import Engine
from kvactors.core.engine.runner import new_arena
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.events import Finished, KVNeeded
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.family_args import WINDOW
from kvactors.core.testing.models import Faulty

LoadFamily = Callable[..., LoadedModel]
MakeEngine = Callable[..., Engine]

KINDS = {
    "full": "qwen3",
    "keys and values of different size": "deepseek_v2",
    "sliding": "gemma3_text",
    "sinks": "gpt_oss",
    "soft-capped": "gemma2",
    "latent": "deepseek_v3",
    "chosen keys": "deepseek_v32",
    "shared": "gemma3n",
    "shared, of windows": "gemma4_text",
    "experts": "qwen3_moe",
    "row by row": "gpt_bigcode",
    "recurrent": "mamba2",
    "linear attention": "qwen3_next",
    "convolution": "lfm2",
    "attention and state in one layer": "falcon_h1",
    "window and state in one layer": "baichuan_m1",
    "window and state": "recurrent_gemma",
}
SAMPLING = Sampling(max_tokens=9)
# Around the window, around a block, and where the ring of a window is full; the first token of
# one is taken while others decode.
LENGTHS = (255, 1, WINDOW - 1, WINDOW, WINDOW + 1, 256, 257, 316)

every_kind = pytest.mark.parametrize("family", KINDS.values(), ids=KINDS.keys())


def prompts_of(lengths: tuple[int, ...], seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 128, length).tolist() for length in lengths]


def ask(
    engine: Engine, known: list[int], new: list[int], sampling: Sampling = SAMPLING
) -> Finished:
    return run_engine(engine, [(0, make_request("a", known, new, sampling))])["a"]


@every_kind
def test_rows_that_join_and_leave_at_any_step_do_not_change_each_other(
    load_family: LoadFamily, make_engine: MakeEngine, family: str
) -> None:
    rows_are_as_alone(load_family(family), make_engine, LENGTHS)


def test_a_state_of_the_last_inputs_joins_before_it_has_all_of_them(
    load_family: LoadFamily, make_engine: MakeEngine
) -> None:
    rows_are_as_alone(load_family("longcat_flash_ngram"), make_engine, (9, 1, 2, 3))


def rows_are_as_alone(
    loaded: LoadedModel, make_engine: MakeEngine, lengths: tuple[int, ...]
) -> None:
    prompts = prompts_of(lengths)
    budgets = [Sampling(max_tokens=6 + i) for i in range(len(prompts))]
    expected = [
        ask(make_engine(loaded), [], prompt, sampling).request.generated
        for prompt, sampling in zip(prompts, budgets, strict=True)
    ]

    arrivals = [
        (2 * i, make_request(f"{i}", [], prompt, sampling))
        for i, (prompt, sampling) in enumerate(zip(prompts, budgets, strict=True))
    ]
    ends = run_engine(make_engine(loaded, max_batch=4), arrivals)

    assert [ends[f"{i}"].request.generated for i in range(len(prompts))] == expected
    assert len({tuple(tokens) for tokens in expected}) > 1


@every_kind
def test_the_first_token_changes_what_is_decided_later(
    load_family: LoadFamily, family: str
) -> None:
    loaded = load_family(family)
    rest = prompts_of((WINDOW - 3,), seed=2)[0]

    logits = [prefilled(loaded, [first, *rest], 256)[1] for first in (3, 4)]

    deviation = float(mx.sqrt(mx.var(logits[0])))
    assert float(mx.abs(logits[0] - logits[1]).max()) > 0.001 * deviation


def prefilled(loaded: LoadedModel, prompt: list[int], chunk: int) -> tuple[Arena, mx.array]:
    arena = new_arena(loaded)
    arena.add_row(0, len(prompt))
    logits = mx.zeros(())
    for start in range(0, len(prompt), chunk):
        logits = arena.forward(loaded.model, mx.array([prompt[start : start + chunk]]))
        arena.evaluate()
    return arena, logits[0, -1]


@pytest.mark.parametrize("chunk", [31, 64, 255])
@pytest.mark.parametrize("family", ["deepseek_v2", "gemma3_text", "gpt_oss", "gemma3n"])
def test_every_chunk_size_caches_the_same_bytes(
    load_family: LoadFamily, family: str, chunk: int
) -> None:
    loaded = load_family(family)
    prompt = prompts_of((600,), seed=3)[0]

    whole, logits = prefilled(loaded, prompt, 256)
    parts, chunked_logits = prefilled(loaded, prompt, chunk)

    pairs = zip(whole.export(0, 0, 600).groups, parts.export(0, 0, 600).groups, strict=True)
    assert all(bool(mx.array_equal(a[name], b[name])) for a, b in pairs for name in a)
    assert mx.array_equal(logits, chunked_logits)


@every_kind
def test_a_turn_after_a_restore_equals_one_that_never_stopped(
    load_family: LoadFamily, make_engine: MakeEngine, family: str
) -> None:
    loaded = load_family(family)
    first, second = prompts_of((400, 20), seed=4)
    engine = make_engine(loaded, stored=True)
    end = ask(engine, [], first)
    known = end.request.tokens
    hot = ask(engine, known, second)

    warm = restored(make_engine(loaded, stored=True), end.exported, known, second)

    assert (hot.request.cache_state, warm.request.cache_state) == ("hot", "warm")
    assert hot.request.kept == warm.request.kept == len(known) - 1
    assert warm.request.generated == hot.request.generated
    assert [part.tensors for part in warm.exported] == [part.tensors for part in hot.exported]


def restored(
    engine: Engine, stored: tuple[Segment, ...], known: list[int], new: list[int]
) -> Finished:
    """A turn of an agent whose KV must be read first."""
    engine.submit(make_request("a", known, new, SAMPLING))
    engine.step()
    engine.provide("a", stored)
    return run_engine(engine, [])["a"]


@every_kind
def test_a_row_that_stops_while_the_next_step_runs_leaves_the_cache_it_would_leave_alone(
    load_family: LoadFamily, make_engine: MakeEngine, family: str
) -> None:
    loaded = load_family(family)
    other, second, *firsts = prompts_of((60, 5, 40, 41, 42, 43, 44), seed=5)
    first, stops = next(filter(None, (stopping(make_engine, loaded, p) for p in firsts)))

    def run(engine: Engine, *beside: Any) -> Finished:
        request = make_request("a", [], first, SAMPLING, stop_tokens=stops)
        return run_engine(engine, [(0, request), *beside])["a"]

    alone = run(make_engine(loaded, stored=True))
    longer = make_request("b", [], other, Sampling(max_tokens=30))
    beside = run(make_engine(loaded, stored=True), (0, longer))
    again = restored(
        make_engine(loaded, stored=True), beside.exported, alone.request.tokens, second
    )

    assert alone.reason == beside.reason == "stop"
    assert [part.tensors for part in beside.exported] == [part.tensors for part in alone.exported]
    assert again.request.kept == len(alone.request.tokens) - 1


def stopping(
    make_engine: MakeEngine, loaded: LoadedModel, prompt: list[int]
) -> tuple[list[int], frozenset[int]] | None:
    """The prompt, and a token that is first said in the middle of its answer, if one is."""
    said = ask(make_engine(loaded), [], prompt).request.generated
    fresh = [token for place, token in enumerate(said) if place > 1 and token not in said[:place]]
    return (prompt, frozenset(fresh[:1])) if fresh else None


@every_kind
def test_a_cancelled_row_leaves_its_neighbours_bit_identical(
    load_family: LoadFamily, make_engine: MakeEngine, family: str
) -> None:
    loaded = load_family(family)
    prompts = prompts_of((30, 70, 300), seed=6)
    expected = [ask(make_engine(loaded), [], p).request.generated for p in prompts]
    engine = make_engine(loaded)

    def cancel_the_middle(step: int) -> None:
        if step == 6:
            engine.cancel("1", 1)

    arrivals = [(0, make_request(f"{i}", [], p, SAMPLING, serial=i)) for i, p in enumerate(prompts)]
    ends = run_engine(engine, arrivals, cancel_the_middle)

    cut = ends["1"].request.generated
    assert cut == expected[1][: len(cut)]
    assert [ends[i].request.generated for i in "02"] == [expected[0], expected[2]]


@pytest.mark.parametrize("family", ["gemma3_text", "falcon_h1", "mamba2"])
def test_agents_that_leave_a_small_memory_and_come_back_answer_the_same(
    load_family: LoadFamily, make_engine: MakeEngine, family: str
) -> None:
    loaded = load_family(family)
    prompts = prompts_of((300, 310, 320, 280), seed=7)
    roomy = make_engine(loaded, stored=True)
    budget = roomy.memory.workspace[0].least(350, 1) + 4 * loaded.spec.bytes_of(350)
    small = make_engine(loaded, stored=True, budget=budget)
    said: dict[str, list[list[int]]] = {"roomy": [], "small": []}

    for name, engine in (("roomy", roomy), ("small", small)):
        known: list[list[int]] = [[] for _ in prompts]
        stored: dict[str, list[Segment]] = {}
        for news in (prompts, [[5], [6, 7], [8], [9]]):
            requests = [make_request(f"{i}", known[i], new, SAMPLING) for i, new in enumerate(news)]
            run_over_store(engine, requests, stored)
            known = [request.tokens for request in requests]
            said[name] += [request.generated for request in requests]

    assert said["small"] == said["roomy"]
    assert small.stats()["evictions"] > 0
    assert roomy.stats()["evictions"] == 0


def run_over_store(
    engine: Engine, requests: list[Request], stored: dict[str, list[Segment]]
) -> None:
    """Run turns to their end; what is exported is kept as a store would, and given back."""
    for request in requests:
        engine.submit(request)
    while engine.busy:
        for event in engine.step():
            if isinstance(event, KVNeeded):
                engine.provide(event.agent_id, stored.get(event.agent_id, ()))
            elif isinstance(event, Finished):
                agent, exported = event.request.agent_id, event.exported
                kept = [p for p in stored.get(agent, []) if p.start < exported[0].start]
                stored[agent] = [*kept, *exported]
                engine.saved(agent, sum(p.nbytes for p in exported))
        engine.check()


fixed_chunks = pytest.mark.parametrize("family", ["deepseek_v3", "gemma2", "mamba2", "qwen3_next"])


@fixed_chunks
def test_a_beginning_that_agents_share_leaves_the_cache_that_each_would_have_alone(
    load_family: LoadFamily, make_engine: MakeEngine, family: str
) -> None:
    loaded = load_family(family)
    beginning, *ends = prompts_of((100, 30, 200), seed=8)

    def request(name: str, end: list[int]) -> Request:
        asked = make_request(name, [], [*beginning, *end], SAMPLING)
        asked.shared, asked.prompt_hash = len(beginning), "the same"
        return asked

    alone = run_engine(make_engine(loaded, stored=True), [(0, request("b", ends[1]))])["b"]
    engine = make_engine(loaded, stored=True)
    shared = run_engine(engine, [(0, request("a", ends[0])), (1, request("b", ends[1]))])["b"]

    assert (alone.request.kept, shared.request.kept) == (0, len(beginning))
    assert shared.request.generated == alone.request.generated
    assert [part.tensors for part in shared.exported] == [part.tensors for part in alone.exported]


@fixed_chunks
def test_a_turn_that_begins_again_decodes_what_it_would_have(
    load_family: LoadFamily, make_engine: MakeEngine, family: str
) -> None:
    loaded = load_family(family)
    prompts = prompts_of((300, 40), seed=9)
    budgets = [Sampling(max_tokens=n) for n in (9, 12)]

    def requests() -> list[Request]:
        return [make_request(f"{i}", [], prompts[i], budgets[i]) for i in range(2)]

    alone = [run_engine(make_engine(loaded, stored=True), [(0, r)]) for r in requests()]
    faulty = Faulty(loaded.model)
    engine = make_engine(replace(loaded, model=faulty), stored=True)

    def fail(step: int) -> None:
        if step == 8:
            faulty.arm(step=0)

    together = run_engine(engine, [(0, request) for request in requests()], fail)

    for name, expected in zip("01", alone, strict=True):
        end = together[name]
        assert end.request.generated == expected[name].request.generated
        assert [p.tensors for p in end.exported] == [p.tensors for p in expected[name].exported]
