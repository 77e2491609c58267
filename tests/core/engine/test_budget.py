"""The budget is a bound, whatever runs: measured by what MLX itself counts."""

import functools
import os
from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import pytest
from budgets import bytes_on_a_cpu, least_for, peak_of_turns
from crowds import FAMILIES, Lot, least_of, live
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from makers import LoadGrid, MakeEngine
from seeded import bug, seeded

from kvactors.core.arena import pieces
from kvactors.core.attention.policy import AttentionMode
from kvactors.core.errors import MemoryExceeded, TurnFailed
from kvactors.core.model import workspace
from kvactors.core.model.load import LoadedModel, load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.model.workspace import WorkSpace, cover, forward_bytes
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.families import build
from kvactors.core.testing.models import PlainTokenizer, grid, tiny_model

pytestmark = pytest.mark.usefixtures("no_engine")

ANSWER = Sampling(max_tokens=12)
FULL = bool(os.environ.get("KVACTORS_FULL"))


@st.composite
def lots(draw: st.DrawFn) -> Lot:
    """Crowds of a few, of a thousand tokens each at most."""
    return Lot(
        draw(st.sampled_from(sorted(FAMILIES))),
        attention=draw(st.sampled_from(["auto", "packed", "dequantize"])),
        reproducible=draw(st.booleans()),
        float_tokens=draw(st.sampled_from([0, 300])),
        budget=draw(st.sampled_from([4_000_000, 5_000_000, 8_000_000, 12_000_000])),
        max_batch=draw(st.sampled_from([1, 4, 16])),
        lengths=tuple(draw(st.lists(st.integers(10, 900), min_size=1, max_size=4))),
        shared=draw(st.sampled_from([0, 100, 300])),
        forks=draw(st.integers(0, 3)),
        choices=draw(st.booleans()),
        stored=draw(st.booleans()),
        sampled=draw(st.booleans()),
        trunks=draw(st.booleans()),
        back=draw(st.sampled_from([0, 30, 300])),
        seed=draw(st.integers(0, 1000)),
    )


@pytest.mark.usefixtures("peaks")
@pytest.mark.slow
@pytest.mark.timeout(7200 if FULL else 300)
@settings(
    max_examples=300 if FULL else 5,
    # A crowd takes seconds, and is small as it is.
    phases=(Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(lots())
def test_no_combination_takes_more_than_the_budget(lot: Lot) -> None:
    lives = live(lot)

    print(f"{lives.peak:.2f} of the budget, {lives.refused} refused, {lives.ended} ended: {lot}")
    assert lives.peak <= 1.0
    assert lives.ended + lives.refused >= len(lot.lengths)
    if not lives.ended:
        enough = live(replace(lot, budget=least_of(lot)))
        assert enough.ended >= 1
        assert enough.peak <= 1.0


@pytest.mark.usefixtures("peaks")
def test_what_is_left_behind_the_last_whole_block_keeps_its_scores_within_the_budget() -> None:
    lot = Lot("gpt_oss", reproducible=True, budget=8_000_000, lengths=(900, 900, 400), shared=300)
    lot = replace(lot, forks=3, choices=True, stored=True, sampled=True, seed=507)

    lives = live(lot)
    if not lives.ended:
        # What a forward takes is measured: on this machine it is more.
        lives = live(replace(lot, budget=least_of(lot)))

    assert lives.ended >= 1
    assert lives.peak <= 1.0


@functools.cache
def deep() -> LoadedModel:
    """A model whose rows take more than its steps do: those alone leave no room for a copy."""
    model = tiny_model(num_hidden_layers=16)
    return load_model(lambda: (model, PlainTokenizer()), ModelOptions(attention="packed"))


@pytest.mark.usefixtures("peaks")
def test_turns_that_outgrow_the_budget_together_end_within_it(make_engine: MakeEngine) -> None:
    loaded, answer = deep(), Sampling(max_tokens=180)
    row, step = loaded.spec.bytes_of(256), WorkSpace.once(loaded).decode(2, 256)
    budget = int(2.4 * row) + step
    engine = make_engine(loaded, 2, budget)
    mx.reset_peak_memory()
    before = mx.get_active_memory() - engine.memory.active

    ended = run_engine(engine, [(0, make_request(name, [], [5] * 64, answer)) for name in "ab"])

    peak = (mx.get_peak_memory() - before) / budget
    print(f"{peak:.2f} of the budget, {engine.stats()['preemptions']} gave way")
    assert [ended[name].request.decoded for name in "ab"] == [180, 180]
    assert engine.stats()["preemptions"] == 1
    assert peak <= 1.0


@pytest.mark.slow
def test_no_turn_is_admitted_again_and_again_that_gives_way_to_the_copy_of_another(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(deep(), 4, 6_000_000)
    long = make_request("long", [], [5] * 600, Sampling(max_tokens=90))
    last = make_request("last", [], [7] * 200, Sampling(max_tokens=30))
    turns = [(0, long), (14, last)]
    for number in range(5):
        # Whenever one of these ends, the last one may try again.
        short = make_request(f"short {number}", [], [9] * 10, Sampling(max_tokens=2))
        short.priority = 2
        turns.append((18 + 12 * number, short))
    long.priority = 1

    run_engine(engine, turns)

    print(f"it gave way {last.preempted} times")
    assert last.preempted <= 3


def test_nobody_leaves_for_a_turn_of_which_nothing_is_kept(make_engine: MakeEngine) -> None:
    loaded = deep()
    engine = make_engine(loaded, 4, int(2.9 * loaded.spec.bytes_of(1500)))
    run_engine(engine, [(0, make_request(f"{i}", [], [5 + i] * 200, ANSWER)) for i in range(3)])
    passing = make_request("passing", [], [5] * 1300, ANSWER)
    passing.passing = True

    run_engine(engine, [(0, passing)])

    assert engine.memory.evictions == 0
    assert sorted(engine.memory.hot) == ["0", "1", "2"]


@pytest.mark.usefixtures("peaks")
def test_an_agent_with_windows_has_its_checkpoints_within_the_budget(
    make_engine: MakeEngine,
) -> None:
    loaded = with_windows(12, 12, ModelOptions(), sliding_window=1024)
    engine = make_engine(loaded, 2, least_for(make_engine(loaded), 1210, 10))

    assert peak_of_turns(engine, [1100, 10, 10, 10, 10]) <= 1.0


def with_windows(layers: int, pattern: int, options: ModelOptions, **changes: int) -> LoadedModel:
    """A model of which each layer but one of a `pattern` has windows."""
    changes |= {"num_hidden_layers": layers, "sliding_window_pattern": pattern}
    made = build("gemma3_text", **changes)
    return load_model(lambda: (made, PlainTokenizer()), options)


@pytest.mark.usefixtures("peaks")
@pytest.mark.slow
def test_what_checkpoints_leave_behind_is_joined_only_where_there_is_room(
    make_engine: MakeEngine,
) -> None:
    loaded = with_windows(8, 2, ModelOptions(attention="packed"))
    engine = make_engine(loaded, 1, least_for(make_engine(loaded), 808, 200))

    assert peak_of_turns(engine, [200] * 5) <= 1.0
    apart = len(engine.memory.hot.touch("a").pieces)
    roomy = make_engine(loaded)
    peak_of_turns(roomy, [200] * 5)
    assert len(roomy.memory.hot.touch("a").pieces) < apart


def test_where_pieces_cannot_be_joined_what_was_kept_stays_whole(make_engine: MakeEngine) -> None:
    engine = make_engine(with_windows(4, 2, ModelOptions()))

    def fails(_true: object) -> Callable[..., object]:
        return lambda *_: 1 / 0

    with seeded(bug(pieces, "join_pieces")(fails)), pytest.raises(TurnFailed):
        peak_of_turns(engine, [20] * 5)

    engine.check()
    assert engine.memory.hot.touch("a").end == engine.memory.hot.touch("a").pieces[-1].end == 109


@pytest.mark.usefixtures("peaks")
def test_what_a_turn_leaves_of_a_long_piece_is_copied_once(make_engine: MakeEngine) -> None:
    engine = make_engine(deep(), 1, least_for(make_engine(deep()), 1000, 10))

    assert peak_of_turns(engine, [1030, 10], kept=1000) <= 1.0


def test_what_is_written_from_where_it_stands_counts_once(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine = make_engine(load_grid(), stored=True)
    ended = run_engine(engine, [(0, make_request("a", [], [5] * 700, ANSWER))])["a"]
    waits = sum(part.nbytes for part in ended.exported)

    before = engine.stats()
    engine.forget("a")
    forgotten = engine.stats()
    engine.saved("a", waits)
    after = engine.stats()

    kept = before["hot_bytes"]
    assert (before["backlog_bytes"], before["used_bytes"]) == (waits, kept) == (kept, kept)
    assert (forgotten["hot_bytes"], forgotten["used_bytes"]) == (0, waits)
    assert (after["backlog_bytes"], after["used_bytes"]) == (0, 0)
    engine.check()


@pytest.mark.usefixtures("peaks")
@pytest.mark.parametrize("reproducible", [False, True])
def test_a_budget_too_small_for_the_least_of_a_turn_is_refused_with_what_it_needs(
    reproducible: bool,
) -> None:
    small = Lot("llama", reproducible=reproducible, budget=200_000, lengths=(300,))

    refused = live(small)
    needed = least_of(small)

    assert (refused.peak, refused.refused) == (0.0, 1)
    assert needed > small.budget
    enough = live(replace(small, budget=needed))
    # Its second turn is longer.
    assert (enough.ended, enough.refused) == (1, 1)
    assert enough.peak <= 1.0


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(1, 512), st.integers(1, 4096)), min_size=3, max_size=6),
    st.data(),
)
def test_factors_cover_every_peak_and_no_more_than_they_must(
    chunks: list[tuple[int, int]], data: st.DataObject
) -> None:
    needs = [[tokens, tokens * keys, keys] for tokens, keys in chunks]
    # No bytes are so few that a float loses its digits.
    true = [data.draw(st.floats(0, 1e4, allow_subnormal=False)) for _ in range(3)]
    peaks = [sum(n * f for n, f in zip(need, true, strict=True)) for need in needs]

    found = cover(needs, peaks)

    estimated = [sum(n * f for n, f in zip(need, found, strict=True)) for need in needs]
    assert all(factor >= 0 for factor in found)
    assert all(e >= 0.99 * peak for e, peak in zip(estimated, peaks, strict=True))
    assert sum(estimated) <= 1.01 * sum(peaks) + 1


def test_what_is_left_behind_the_last_whole_block_takes_no_more_than_is_planned_for_it() -> None:
    # What its recurrent layers need grows with the square of a chunk.
    made = build("falcon_h1"), PlainTokenizer()
    loaded = load_model(lambda: made, ModelOptions(attention="packed"))
    space = WorkSpace.measure(loaded)

    shares = {n: forward_bytes(loaded, n, n)[0] / space.alone(n) for n in (40, 150, 200, 250)}

    assert loaded.fixed_chunks
    print(", ".join(f"{tokens} tokens: {share:.2f}" for tokens, share in shares.items()))
    assert max(shares.values()) <= 1


def test_a_model_that_is_loaded_again_is_not_measured_again_unless_it_attends_otherwise() -> None:
    forwards = []

    def counted(loaded: LoadedModel, tokens: int, keys: int) -> tuple[int, int]:
        forwards.append(tokens)
        return bytes_on_a_cpu(loaded, tokens, keys)

    def measured(attention: AttentionMode) -> int:
        """How many forwards it takes to know what a model needs that is loaded now."""
        before = len(forwards)
        WorkSpace.once(load_model(grid, ModelOptions(attention=attention)))
        return len(forwards) - before

    with seeded(bug(workspace, "forward_bytes")(lambda _: counted)):
        modes: tuple[AttentionMode, ...] = ("packed", "packed", "dequantize", "packed")
        counts = [measured(mode) for mode in modes]

    assert [count > 0 for count in counts] == [True, False, True, False]


def test_a_budget_below_one_block_is_refused_with_the_least() -> None:
    with pytest.raises(MemoryExceeded, match=r"is 100000 bytes: 256 tokens .* take 122880"):
        live(Lot("llama", budget=100_000))
