"""One suite over every kind of layer cache: on grid models, batched, staggered, chunked,
cancelled, evicted and restored equal alone, bit for bit [design, Exactness]."""

from typing import Any

import mlx.core as mx
import pytest
from layer_kinds import KINDS
from makers import PADDED_SUMS, LoadFamily, MakeEngine, prompts_of

from kvactors.core.arena.arena import Arena
from kvactors.core.arena.pieces import join_pieces
from kvactors.core.cache.segment import Segment
from kvactors.core.engine.engine import Engine
from kvactors.core.engine.runner import new_arena
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.events import Finished
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.family_args import WINDOW

SAMPLING = Sampling(max_tokens=9)
# Around the window, around a block, and where the ring of a window is full; the first token of
# one is taken while others decode.
LENGTHS = (255, 1, WINDOW - 1, WINDOW, WINDOW + 1, 256, 257, 316)

every_kind = pytest.mark.parametrize("family", KINDS.values(), ids=KINDS.keys())


def ask(
    engine: Engine, known: list[int], new: list[int], sampling: Sampling = SAMPLING
) -> Finished:
    return run_engine(engine, [(0, make_request("a", known, new, sampling))])["a"]


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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

    fresh = make_engine(loaded, stored=True)
    warm = restored(fresh, end.exported, known, second)
    # One that was told all of it at once, whom no checkpoint was given; where sums depend on how
    # wide a chunk is, in chunks of the same widths.
    untouched = make_engine(loaded)
    before = known[:-1] if family in PADDED_SUMS else []
    if before:
        ask(untouched, [], before, Sampling(max_tokens=1))
    told = ask(untouched, before, [*known, *second][len(before) :])

    assert (hot.request.cache_state, warm.request.cache_state) == ("hot", "warm")
    assert hot.request.kept == warm.request.kept == len(known) - 1
    assert warm.request.generated == hot.request.generated == told.request.generated
    assert [part.tensors for part in warm.exported] == [part.tensors for part in hot.exported]
    for mine, theirs in zip(kept(fresh, len(known)), kept(untouched, len(known)), strict=True):
        assert mx.array_equal(mine, theirs)


def kept(engine: Engine, start: int) -> list[mx.array]:
    """What layers that keep every token have of the agent's tokens from `start` on."""
    cache = engine.memory.hot.get("a")
    assert cache is not None
    piece = join_pieces(cache.pieces, start, cache.end)
    groups = zip(piece.groups, piece.spec.by_token, strict=True)
    return [array for group, by_token in groups if by_token for array in group.values()]


def restored(
    engine: Engine, stored: tuple[Segment, ...], known: list[int], new: list[int]
) -> Finished:
    """A turn of an agent whose KV must be read first."""
    engine.submit(make_request("a", known, new, SAMPLING))
    engine.step()
    engine.provide("a", stored)
    return run_engine(engine, [])["a"]


@pytest.mark.slow
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
    # As one that was told all of it at once, and has decoded nothing before.
    told = ask(make_engine(loaded), [], [*alone.request.tokens, *second])
    assert again.request.generated == told.request.generated


def stopping(
    make_engine: MakeEngine, loaded: LoadedModel, prompt: list[int]
) -> tuple[list[int], frozenset[int]] | None:
    """The prompt, and a token that is first said in the middle of its answer, if one is."""
    said = ask(make_engine(loaded), [], prompt).request.generated
    fresh = [token for place, token in enumerate(said) if place > 1 and token not in said[:place]]
    return (prompt, frozenset(fresh[:1])) if fresh else None


@pytest.mark.slow
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
