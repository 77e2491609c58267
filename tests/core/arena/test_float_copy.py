"""Few short rows kept as floats for decode steps: the same tokens and bytes, within memory."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from makers import LoadGrid, MakeEngine

from kvactors.core.arena.arena import Arena
from kvactors.core.arena.cells import Cells
from kvactors.core.arena.float_copy_cpu import LATE_STEPS, MOST_BYTES
from kvactors.core.arena.kv_layer import KVLayer
from kvactors.core.arena.pools import Pool
from kvactors.core.attention.policy import UNPACK_ROWS, AttentionPolicy
from kvactors.core.cache.spec import LayerSpec
from kvactors.core.engine.engine import Engine
from kvactors.core.model.load import LoadedModel, load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.model.workspace import WorkSpace, forward_bytes
from kvactors.core.quant.codec import encode
from kvactors.core.quant.device import on_cpu
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.models import PlainTokenizer, tiny_model

LAYER = LayerSpec("full", 2, 64, 4, 64, "float32")


def with_floats(loaded: LoadedModel) -> LoadedModel:
    """The same with the policy that a CPU has."""
    return replace(loaded, policy=AttentionPolicy(unpack=True))


def copies(arena: Arena) -> list[bool]:
    """For each layer, whether any of its slabs is kept as floats."""
    layers = [layer for layer in arena.layers if isinstance(layer, KVLayer)]
    return [any(pool.nbytes > pool.stored_bytes for pool in layer.rows.pools) for layer in layers]


def grown(loaded: LoadedModel, *, floats: bool) -> Arena:
    arena = Arena(loaded.spec, loaded.policy)
    arena.floats = floats
    for length in (5, 60, 9):
        arena.add_row(0, length)
    arena.forward(loaded.model, mx.array(np.arange(15).reshape(3, 5) + 1))
    arena.evaluate()
    return arena


def decoding(engine: Engine) -> tuple[Engine, Request, Arena]:
    """A turn that has ten tokens of 200, and where it decodes."""
    request = make_request("a", [], [1, 2, 3], Sampling(max_tokens=200))
    engine.submit(request)
    while len(request.generated) < 10:
        engine.step()
    return engine, request, engine.memory.running.common[0].arena


# -- the same as without -------------------------------------------------------------------

ROWS = 3
changes = st.sampled_from(
    ["step", "step", "chunk", "same", "fewer", "load", "move", "grow", "shrink"]
)


class Pair:
    """A slab that is kept as floats when that is due, and one that never is."""

    def __init__(self, kv_bits: int | None) -> None:
        layer = replace(LAYER, bits=kv_bits, group_size=kv_bits and 64)
        self.pools = Pool(layer, ROWS, 128), Pool(layer, ROWS, 128)
        self.lengths = [3, 50, 9]
        self._seed = 0

    def _noise(self, rows: int, tokens: int) -> mx.array:
        self._seed += 1
        return mx.random.normal((rows, 2, tokens, 64), key=mx.random.key(self._seed))

    def write(self, rows: int, tokens: int, lengths: list[int]) -> None:
        keys, values = self._noise(rows, tokens), self._noise(rows, tokens)
        at = np.array(lengths[:rows])[:, None] + np.arange(tokens)
        start = lengths[0] if len(set(lengths[:rows])) == 1 else None
        for index, pool in enumerate(self.pools):
            if index == 0 and tokens == 1:
                pool.floats.keep()
            else:
                pool.floats.drop()
            pool.write(keys, values, Cells(mx.array(at), start))
        self.lengths = [(n + tokens) % 60 for n in lengths]

    def run(self, what: str) -> None:
        two, capacity = self.pools[1], self.pools[0].shape[1]
        if what in ("step", "chunk", "fewer"):
            self.write(ROWS - (what == "fewer"), 3 if what == "chunk" else 1, self.lengths)
        elif what == "same":
            self.write(ROWS, 1, [40] * ROWS)
        for pool in self.pools:
            if what == "load":
                pool.load(1, 5, {name: a[:, :, :20] for name, a in two.export(0, 0, 30).items()})
            elif what == "move":
                pool.move(0, 2)
            elif what == "grow":
                pool.resize(ROWS + 1, capacity + 64)
            elif what == "shrink":
                pool.shrink(ROWS, 128)


@pytest.mark.skipif(not on_cpu(), reason="of two writes to a cell, the last stays on a CPU only")
@pytest.mark.parametrize("kv_bits", [4, 8, None])
@settings(max_examples=40)
@given(operations=st.lists(changes, max_size=30), looked=st.sets(st.integers(0, 29)))
def test_whatever_happens_to_a_slab_its_floats_are_what_its_codes_say(
    kv_bits: int | None, operations: list[str], looked: set[int]
) -> None:
    pair = Pair(kv_bits)
    one, two = pair.pools
    for number, what in enumerate(operations):
        pair.run(what)
        ours, theirs = one.read(ROWS, 128, floats=True), two.read(ROWS, 128)
        for kept, expected in zip(ours.floats(), theirs.floats(), strict=True):
            assert mx.array_equal(kept, expected)
        if number in looked:
            assert_same_bytes(one, two)
    assert_same_bytes(one, two)


@pytest.mark.skipif(not on_cpu(), reason="of two writes to a cell, the last stays on a CPU only")
def test_the_codes_of_many_steps_are_stored_too() -> None:
    pair = Pair(4)
    for _ in range(150):
        pair.run("step")
    assert pair.pools[0].nbytes > pair.pools[0].stored_bytes

    assert_same_bytes(*pair.pools)


def assert_same_bytes(one: Pool, two: Pool) -> None:
    assert all(mx.array_equal(array, two.arrays[name]) for name, array in one.arrays.items())


def test_a_turn_decodes_over_floats_as_over_codes(make_engine: MakeEngine) -> None:
    seen: list[bool] = []

    def answers(loaded: LoadedModel) -> dict[str, list[int]]:
        prompts = {f"{i}": list(range(1, 12 + 7 * i)) for i in range(3)}
        requests = [
            (0, make_request(n, [], p, Sampling(max_tokens=90))) for n, p in prompts.items()
        ]
        engine = make_engine(loaded)

        def look(_: int) -> None:
            seen.append(all(copies(engine.memory.running.common[0].arena)))

        found = run_engine(engine, requests, look)
        return {name: found[name].request.generated for name in prompts}

    # Not a grid model: there a last bit may become a step of the grid.
    loaded = load_model(lambda: (tiny_model(), PlainTokenizer()), ModelOptions(attention="packed"))
    assert answers(with_floats(loaded)) == answers(loaded)
    assert seen.count(True) > 80


# -- when there are any --------------------------------------------------------------------


def test_a_decode_step_makes_them_and_what_else_changes_the_slab_drops_them(
    load_grid: LoadGrid,
) -> None:
    loaded = with_floats(load_grid())
    arena = grown(loaded, floats=True)
    token = mx.array([[7]] * 3)

    def step() -> bool:
        arena.forward(loaded.model, token[: len(arena)])
        return all(copies(arena))

    assert step()
    arena.leave(0)
    assert not any(copies(arena))
    assert step()
    arena.forward(loaded.model, mx.array([[1, 2]] * 2))
    assert not any(copies(arena))


@pytest.mark.parametrize(
    ("slots", "tokens", "kept"),
    [
        (MOST_BYTES // (2 * 2 * 512 * 64 * 4), 512, True),
        (MOST_BYTES // (2 * 2 * 512 * 64 * 4) + 1, 512, False),
        (1, MOST_BYTES // (2 * 2 * 64 * 4), True),
        (1, MOST_BYTES // (2 * 2 * 64 * 4) + 64, False),
    ],
)
def test_only_so_many_bytes_of_floats_are_kept(slots: int, tokens: int, kept: bool) -> None:
    pool = Pool(LAYER, slots, tokens)
    asked = pool.floats.bytes_more()

    pool.floats.keep()

    assert pool.nbytes - pool.stored_bytes == (2 * slots * 2 * tokens * 64 * 4 if kept else 0)
    new = mx.zeros((slots, 2, 1, 64))
    for step in range(LATE_STEPS):
        pool.floats.keep()
        pool.write(new, new, Cells(mx.full((slots, 1), step)))
    assert pool.nbytes - pool.stored_bytes == asked
    assert pool.floats.bytes_more() == (0 if kept else asked)


def test_of_a_large_slab_what_its_rows_begin_with_is_kept_as_floats() -> None:
    tokens = 1 + MOST_BYTES // (2 * ROWS * 2 * 64 * 4)
    pool = Pool(LAYER, ROWS, tokens)
    noise = mx.random.normal((ROWS, 2, 40, 64))
    pool.load(0, 0, {name: a[:, 0] for name, a in encode(LAYER, noise, noise).items()})
    plain = pool.prefix_floats(40)
    assert pool.nbytes == pool.stored_bytes

    asked = pool.floats.bytes_more(40)
    pool.floats.keep(40)
    kept = pool.prefix_floats(40)

    assert all(mx.array_equal(*floats) for floats in zip(plain, kept, strict=True))
    assert pool.nbytes - pool.stored_bytes == asked == 2 * 2 * 40 * 64 * 4
    pool.floats.keep(40)
    pool.write(noise[:, :, :1], noise[:, :, :1], Cells(mx.full((ROWS, 1), 40), 40))
    assert pool.prefix_floats(40) is kept
    pool.load(0, 0, {name: a[:, 1] for name, a in encode(LAYER, noise, noise).items()})
    assert not mx.array_equal(pool.prefix_floats(40)[0], plain[0])
    pool.floats.keep(39)
    assert pool.prefix_floats(39)[0].shape[2] == 39
    pool.floats.drop()
    assert pool.nbytes == pool.stored_bytes


def test_they_are_kept_only_while_half_of_the_budget_is_left(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine, _, arena = decoding(make_engine(with_floats(load_grid())))
    memory = engine.memory
    assert all(copies(arena))
    assert (
        memory.used
        >= arena.nbytes
        > sum(
            pool.stored_bytes
            for layer in arena.layers
            for pool in layer.rows.pools  # type: ignore[attr-defined]
        )
    )

    # The budget fills with bytes that wait to be written.
    memory.backlog += memory.budget // 2
    engine.step()
    assert not any(copies(arena))
    memory.backlog = 0
    engine.step()
    assert all(copies(arena))


def test_a_batch_that_gave_way_waits_before_it_is_kept_as_floats_again(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine, request, arena = decoding(make_engine(with_floats(load_grid())))
    memory = engine.memory

    memory.make_room(memory.room + 1, ["a"])

    kept = []
    while request.generated and len(request.generated) < 100:
        kept.append(all(copies(arena)))
        engine.step()
    assert not any(kept[:60])
    assert kept[-1]


def test_more_query_heads_than_the_path_over_floats_takes_keep_none() -> None:
    """They were kept, never read, and never evaluated."""
    model = tiny_model(num_attention_heads=UNPACK_ROWS + 2, num_key_value_heads=1)
    loaded = load_model(lambda: (model, PlainTokenizer()), ModelOptions())
    arena = grown(with_floats(loaded), floats=True)

    for _ in range(8):
        arena.forward(loaded.model, mx.array([[7]] * 3))
        assert not any(copies(arena))


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_work_space_is_measured_on_the_path_that_long_rows_take(kv_heads: int) -> None:
    """It was measured below the keys from which codes become floats: a fifth of the need."""
    model = tiny_model(num_attention_heads=8, num_key_value_heads=kv_heads)
    loaded = with_floats(load_model(lambda: (model, PlainTokenizer()), ModelOptions(kv_bits=8)))

    needed, _ = forward_bytes(loaded, 1, 8192)

    assert needed <= WorkSpace.measure(loaded).decode(1, 8192)
