"""Rows that begin alike are replayed too, to the bit, and keep what an eager step would."""

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
import pytest
from kin import beginning
from makers import prompt_of
from replays import Rows, Twins, turns_of
from samples import DAY, sample_of

from kvactors.core.arena.kv_rows import KVRows
from kvactors.core.arena.pieces import make_trunk
from kvactors.core.arena.pools import Pool
from kvactors.core.attention.policy import AttentionMode
from kvactors.core.cache.slabs import Trunk
from kvactors.core.cache.spec import LayerSpec
from kvactors.core.model.load import LoadedModel, load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.testing.families import build
from kvactors.core.testing.models import PlainTokenizer

KINDS = [
    (family, attention, floats)
    for family in ("llama", "qwen3_moe", "gemma3_text", "gpt_oss")
    for attention, floats in (("auto", True), ("auto", False), ("packed", False))
]


def load(family: str, attention: AttentionMode = "auto") -> LoadedModel:
    """A model of which short beginnings are worth sharing."""
    model = build(family)
    options = ModelOptions(attention=attention, name="m")
    loaded = load_model(lambda: (model, PlainTokenizer()), options)
    return replace(loaded, policy=replace(loaded.policy, launch_tokens=64))


def trunks_of(loaded: LoadedModel) -> Sequence[Trunk]:
    return [
        make_trunk(beginning(loaded, prompt_of(tokens, tokens), *borders))
        for tokens, borders in ((130, (64,)), (200, ()))
    ]


def forked(
    loaded: LoadedModel, trunk: Trunk, worth: float = 1, *, reads: bool, floats: bool = True
) -> Rows:
    rows = Rows(loaded, worth, floats=floats)
    for name in range(3):
        rows.fork(name, trunk, prompt_of(9 + name, name), reads=reads)
    return rows


@pytest.mark.parametrize(("family", "attention", "floats"), sample_of(KINDS, 3, "trunk replays"))
def test_rows_that_begin_alike_are_replayed_to_the_bit(
    family: str, attention: AttentionMode, *, floats: bool
) -> None:
    loaded = load(family, attention)
    twins = Twins(loaded, f"{DAY} {family}", floats=floats, trunks=trunks_of(loaded))

    twins.live(8)

    assert twins.replayed.steps.replayed > 8
    assert twins.eager.steps.made == 0


@pytest.mark.parametrize("reads", [True, False])
def test_forks_are_replayed(*, reads: bool) -> None:
    loaded = load("llama")
    rows, turns = forked(loaded, trunks_of(loaded)[0], reads=reads), turns_of(3)
    for _ in range(8):
        rows.step(turns, ahead=False)

    (slab,) = rows.arena.table.slabs
    assert (slab.trunk.end > 0) == reads
    assert rows.arena.table.shared(0) == 130
    # The first step shows how the model attends, the second what it keeps of the beginning.
    assert (rows.steps.made, rows.steps.replayed) == (1, 5)


def test_forks_are_replayed_when_there_is_no_room_for_floats_any_more() -> None:
    loaded = load("llama")
    rows, turns = forked(loaded, trunks_of(loaded)[0], reads=True), turns_of(3)
    for _ in range(2):
        rows.step(turns, ahead=False)
    rows.arena.floats = False

    for _ in range(8):
        rows.step(turns, ahead=False)

    assert rows.steps.replayed >= 4


def test_what_is_kept_of_a_beginning_stays_when_rows_need_more_room() -> None:
    loaded = load("llama")
    rows, turns = forked(loaded, trunks_of(loaded)[0], reads=True), turns_of(3)
    (slab,), layer = rows.arena.table.slabs, rows.arena.layers[0].rows
    assert isinstance(layer, KVRows)
    (pool,) = layer.pools
    for _ in range(3):
        rows.step(turns, ahead=False)
    capacity, kept = slab.capacity, pool.floats.kept_prefix

    while slab.capacity == capacity:
        rows.step(turns, ahead=False)

    assert max(slab.lengths) == 130 + capacity + 1
    assert kept
    assert pool.floats.kept_prefix is kept


@pytest.mark.parametrize("reads", [True, False])
def test_forks_are_replayed_right_behind_a_check_of_drafts(*, reads: bool) -> None:
    loaded = load("llama")
    rows, eager = (forked(loaded, trunks_of(loaded)[0], worth, reads=reads) for worth in (1, 999))
    turns = turns_of(3)
    for _ in range(4):
        rows.step(turns, ahead=False)
        eager.step(turns, ahead=False)
    replayed = rows.steps.replayed

    for tokens in ([5, 9], [7, 3, 8]):
        assert mx.array_equal(rows.verify(tokens), eager.verify(tokens))
        mine, theirs = (side.step(turns, ahead=False)[1] for side in (rows, eager))
        assert mx.array_equal(mine, theirs)

    assert rows.steps.replayed == replayed + 2
    assert rows.held() == eager.held()


@pytest.mark.parametrize("floats", [True, False])
def test_a_trace_of_forks_serves_those_of_another_with_as_long_a_beginning(*, floats: bool) -> None:
    loaded = load("llama")
    first, second = (make_trunk(beginning(loaded, prompt_of(130, seed), 64)) for seed in (1, 2))
    others, turns = forked(loaded, first, reads=True, floats=floats), turns_of(3)
    for _ in range(6):
        others.step(turns, ahead=False)
    rows, eager = (
        forked(loaded, second, worth, reads=True, floats=floats) for worth in (1, float("inf"))
    )
    rows.steps = others.steps
    made, replayed = others.steps.made, others.steps.replayed

    for _ in range(6):
        mine, theirs = (side.step(turns, ahead=False)[1] for side in (rows, eager))
        assert mine.tolist() == theirs.tolist()

    assert rows.steps.made == made
    assert rows.steps.replayed >= replayed + 4
    assert rows.held() == eager.held()


def test_a_trace_does_not_serve_those_who_share_less() -> None:
    loaded = load("llama")
    trunk, turns = make_trunk(beginning(loaded, prompt_of(130), 64)), turns_of(3)
    rows, others = (forked(loaded, trunk, reads=False, floats=False) for _ in range(2))
    others.steps = rows.steps
    # Of the second piece they hold the same bytes, and nobody knows.
    for row in others.arena.table.slabs[0].rows:
        row.pieces = row.pieces[:1]

    for side in (rows, others):
        for _ in range(4):
            side.step(turns, ahead=False)

    assert [side.arena.table.shared(0) for side in (rows, others)] == [130, 64]
    assert rows.steps.made == 2


@pytest.mark.parametrize("reads", [True, False])
def test_a_replay_of_forks_writes_in_place(*, reads: bool) -> None:
    loaded = load("llama")
    trunk, peaks = make_trunk(beginning(loaded, prompt_of(900), 256)), []
    for worth in (1, float("inf")):
        rows, turns = forked(loaded, trunk, worth, reads=reads), turns_of(3)
        for _ in range(5):
            rows.step(turns, ahead=False)
        peaks.append(rows.peak(turns))
        assert bool(rows.steps.replayed) == (worth == 1)

    replayed, eager = peaks
    least = trunk.pieces[0].nbytes
    print(f"{replayed:,} bytes above what is held, {eager:,} eagerly, of a copy {least:,} at least")
    assert replayed < eager + least


def test_a_longer_beginning_asks_for_room_where_a_shorter_one_is_kept() -> None:
    wide = LayerSpec("full", 8, 128, 4, 64, "float16")
    pool = Pool(wide, 8, 2560)
    floats = pool.floats
    floats.keep(1024)
    floats.note_prefix(pool.read(1, 1024).floats(mx.float32))
    floats.keep(1024)

    same, longer = floats.bytes_more(1024), floats.bytes_more(2048)
    floats.drop()

    assert (same, longer) == (0, floats.bytes_more(2048))
    assert longer == 2 * floats.bytes_more(1024) > 0


def test_a_beginning_is_kept_while_drafts_are_checked() -> None:
    pool = Pool(LayerSpec("full", 8, 128, 4, 64, "float16"), 8, 2560)
    floats = pool.floats
    floats.keep(1024)
    floats.note_prefix(pool.read(1, 1024).floats(mx.float32))

    floats.keep(None)

    assert floats.kept_prefix
    floats.keep(1024)
    assert floats.begun
    floats.keep(0)
    assert not floats.kept_prefix
