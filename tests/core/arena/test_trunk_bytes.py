"""What agents that begin alike take while they run: one beginning, and what is each one's own."""

import gc
from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
import pytest
from makers import LoadGrid, MakeEngine, Ticks, prompt_of
from seeded import bug, seeded

from kvactors.core.arena.pieces import Piece
from kvactors.core.engine.engine import Engine
from kvactors.core.engine.runner import new_arena
from kvactors.core.engine.running import Rows
from kvactors.core.model.load import LoadedModel, load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request
from kvactors.core.testing.models import PlainTokenizer, tiny_model

LONG = Sampling(max_tokens=30)


@pytest.fixture(scope="module")
def grid(load_grid: LoadGrid) -> LoadedModel:
    """A grid model of which short beginnings are worth sharing."""
    loaded = load_grid()
    return replace(loaded, policy=replace(loaded.policy, launch_tokens=64))


def forked(
    loaded: LoadedModel, engine: Engine, forks: int, tokens: int
) -> tuple[list[int], list[str]]:
    """An agent that remembers so many tokens, of KV that is all zeros, and forks of it."""
    arena = new_arena(loaded)
    arena.add_row(tokens, tokens)
    ends = [*range(1024, tokens, 1024), tokens]
    pieces = [arena.export(0, first, last) for first, last in zip([0, *ends], ends, strict=False)]
    known = prompt_of(tokens)
    assert engine.memory.make_blocks("parent", tokens)
    engine.memory.hot.adopt("parent", pieces, list(known))
    names = [f"child {index}" for index in range(forks)]
    for name in names:
        engine.memory.fork("parent", name)
    return known, names


def all_answer(
    engine: Engine, known: Sequence[int], names: Sequence[str], own: int, answers: int
) -> None:
    """Let all of these decode behind `own` tokens more each, `answers` of them at most."""
    for index, name in enumerate(names):
        asked = prompt_of(own, index)
        engine.submit(make_request(name, known, asked, Sampling(max_tokens=answers)))
    while len(engine.memory.running.answering) < len(names):
        assert engine.busy, "some ended before all had begun"
        engine.step()
        engine.check()
    engine.step()


def ratio(
    loaded: LoadedModel, engine: Engine, forks: int, tokens: int, own: int, answers: int = 30
) -> float:
    """Bytes of KV in memory when all decode, against one beginning and what they were asked."""
    known, names = forked(loaded, engine, forks, tokens)
    all_answer(engine, known, names, own, answers)
    held = engine.memory.used
    for name in names:
        engine.cancel(name, None)
    while engine.busy:
        engine.step()
    return held / (loaded.spec.bytes_per_token * (tokens + forks * own))


def test_forks_that_decode_take_one_beginning_and_what_is_their_own(
    grid: LoadedModel, make_engine: MakeEngine
) -> None:
    sharing, copying = (make_engine(grid, share=share, clock=Ticks()) for share in (True, False))

    shared = ratio(grid, sharing, forks=4, tokens=4000, own=50)
    apart = ratio(grid, copying, forks=4, tokens=4000, own=50)

    assert shared <= 1.15
    assert apart > 4


@pytest.mark.slow
def test_what_they_take_grows_with_what_they_say(
    grid: LoadedModel, make_engine: MakeEngine
) -> None:
    engine = make_engine(grid, clock=Ticks())
    known, names = forked(grid, engine, forks=4, tokens=4000)
    # From 431 answers on, something may be spare.
    all_answer(engine, known, names, own=50, answers=450)
    shares = []

    while len(engine.memory.running.answering) == len(names):
        lengths = engine.memory.running.common[0].arena.table.lengths
        tokens = 4000 + sum(length - 4000 for length in lengths)
        shares.append(engine.memory.used / (grid.spec.bytes_per_token * tokens))
        engine.step()

    print(f"{max(shares):.3f} of one beginning and what follows")
    assert len(shares) > 430
    assert max(shares) <= 1.15


@pytest.mark.slow
@pytest.mark.parametrize("answers", [30, 300])
def test_sixteen_forks_of_a_long_beginning_take_it_once(
    grid: LoadedModel, make_engine: MakeEngine, answers: int
) -> None:
    engine = make_engine(grid, budget=1 << 32, clock=Ticks())

    found = ratio(grid, engine, forks=16, tokens=8_000, own=50, answers=answers)

    print(f"{found:.3f} of one beginning and what follows")
    assert found <= 1.15


@pytest.mark.parametrize("attention", ["auto", "packed", "dequantize"])
def test_a_step_over_a_trunk_stays_within_its_work_space(
    make_engine: MakeEngine, attention: str
) -> None:
    loaded = load_model(lambda: (tiny_model(), PlainTokenizer()), ModelOptions(attention=attention))
    loaded = replace(loaded, policy=replace(loaded.policy, launch_tokens=64))
    engine = make_engine(loaded, clock=Ticks())
    known, names = forked(loaded, engine, forks=6, tokens=3000)
    for index, name in enumerate(names):
        engine.submit(make_request(name, known, prompt_of(20, index), LONG))
    shares = []

    while engine.busy:
        mx.synchronize()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        engine.step()
        mx.synchronize()
        if len(engine.memory.running.answering) == len(names):
            shares.append((mx.get_peak_memory() - before) / engine.memory.expected)

    # The first of these steps prefilled the last prompt too.
    print(f"{max(shares[1:]):.2f} of what was expected")
    assert 0.01 < max(shares[1:]) <= 1


def test_what_rows_read_is_counted_when_no_cache_has_it_any_more(
    grid: LoadedModel, make_engine: MakeEngine
) -> None:
    gc.collect()
    engine = make_engine(grid)
    memory = engine.memory
    known, (name,) = forked(grid, engine, forks=1, tokens=1000)
    before = memory.active - memory.used
    engine.submit(make_request(name, known, prompt_of(5), LONG))
    while not engine.memory.running.answering:
        engine.step()

    def lost() -> int:
        """Bytes that MLX has and the ledger lacks, as all that they had is dropped."""
        memory.hot.drop("parent")
        memory.hot.drop(name)
        memory.hot.touch(name)
        found = memory.active - memory.used - before
        memory.check()
        return found

    assert lost() < 100_000 < 1000 * grid.spec.bytes_per_token
    with seeded(bug(Rows, "read")(lambda _: property(lambda _: set[Piece]()))):
        assert lost() > 250_000
    assert memory.make_blocks(name, 1100)
    engine.cancel(name, None)
    while engine.busy:
        engine.step()
    engine.check()
