"""Rows that begin alike are attended together: their common keys are read once, and it never shows.

Sums over the two parts have another order than over the whole, so the exact tests run the
attention in float64: what is left of a difference is then rounded away, and a key too many or
too few is not.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from cascade import BEGINNING, OPERATIONS, Apart, Company, Noting
from hypothesis import HealthCheck, example, given, settings
from kin import Side, beginning
from makers import prompt_of
from seeded import bug, seeded

from kvactors.core.arena import float_copy_cpu
from kvactors.core.arena.arena import Arena
from kvactors.core.arena.cells import Cells
from kvactors.core.arena.kv_layer import KVLayer
from kvactors.core.arena.pools import Pool
from kvactors.core.attention.attend import attend_together
from kvactors.core.attention.plan import AttendPlan
from kvactors.core.attention.policy import AttentionPath, AttentionPolicy
from kvactors.core.cache.slots import SlotTable
from kvactors.core.cache.spec import LayerSpec
from kvactors.core.engine.engine import Engine
from kvactors.core.engine.runner import new_arena
from kvactors.core.model.load import LoadedModel, load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.model.workspace import WorkSpace
from kvactors.core.quant.device import on_cpu
from kvactors.core.testing.models import PlainTokenizer, tiny_model

MakeEngine = Callable[..., Engine]
FLOAT_EPS = np.finfo(np.float32).eps


# -- one call ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "tokens", "shared"),
    [
        ("packed", 1, 70),
        ("dequantize", 1, 70),
        ("packed", 3, 70),
        ("dequantize", 3, 70),
        ("unpack", 3, 70),
        # So many scores that a CPU takes their exponentials at once.
        ("unpack", 8, 1000),
    ],
)
@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("bits", [4, 8, None])
def test_it_is_the_attention_over_each_rows_keys(
    bits: int | None, repeats: int, path: AttentionPath, tokens: int, shared: int
) -> None:
    rows, heads, dim, extent = 5, 2, 64, shared + 58
    layer = LayerSpec("full", heads, dim, bits, 64 if bits else None, "float32")
    pool = Pool(layer, rows + 1, extent + 128)
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> mx.array:
        return mx.array(rng.normal(size=shape).astype(np.float32))

    keys, values = normal(rows, heads, extent, dim), normal(rows, heads, extent, dim)
    keys[:, :, :shared], values[:, :, :shared] = keys[:1, :, :shared], values[:1, :, :shared]
    pool.write(keys, values, Cells(mx.broadcast_to(mx.arange(extent), (rows, extent)), 0))
    queries = normal(rows, heads * repeats, tokens, dim)
    # Of the first query of each row; the next one sees one key more.
    ends = shared + np.array([1, 50, 20, 2, 30])[:, None] + np.arange(tokens)
    mask = mx.array(np.arange(extent) < ends[..., None])[:, None]

    plan = AttendPlan(path, 0.2, mask)

    stored = pool.read(rows, extent)
    got = np.array(attend_together(queries, stored, pool.prefix_floats(shared), plan))

    stored_keys, stored_values = (np.array(floats).astype(np.float64) for floats in stored.floats())
    for row, head, token in product(range(rows), range(heads * repeats), range(tokens)):
        kv, length = head // repeats, ends[row, token]
        seen, said = stored_keys[row, kv, :length], stored_values[row, kv, :length]
        query = np.array(queries)[row, head, token]
        weights = np.exp(seen @ query * 0.2)
        weights /= weights.sum()
        # Floats round scores by what is summed in them, and so the weights of all values.
        rounding = FLOAT_EPS * (np.abs(seen) @ np.abs(query) * 0.2).max()
        error = np.abs(got[row, head, token] - weights @ said)
        assert (error < 2 * rounding * (weights @ np.abs(said))).all()


@pytest.mark.skipif(not on_cpu(), reason="only a CPU has float64")
def test_rows_that_join_and_leave_get_the_logits_they_get_alone(
    loaded: LoadedModel, calls: list[tuple[int, int]]
) -> None:
    checks = [HealthCheck.function_scoped_fixture]

    @settings(max_examples=10, suppress_health_check=checks)
    @given(OPERATIONS)
    @example([("join", 0, 16), ("join", 0, 1)])
    def run(operations: list[tuple[str, int, int]]) -> None:
        company = Company(loaded)
        for own in (1, 40, 60):
            company.join(0, own)
        for kind, first, second in [*operations, ("step", 0, 0)]:
            if kind == "join":
                company.join(first, second)
            elif kind == "leave" and company.alone:
                company.leave(first % len(company.alone))
            elif kind == "step" and company.alone:
                assert company.step()

    run()
    assert {shared for _, shared in calls} == {len(BEGINNING)}


def test_a_beginning_that_is_kept_as_floats_gives_the_logits_that_its_codes_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Not a grid model: there a last bit may become a step of the grid.
    loaded = load_model(lambda: (tiny_model(), PlainTokenizer()), ModelOptions())
    layer = loaded.spec.layers[0]
    # Of no more than what two rows of 200 tokens take. Patched: through four constructors the limit
    # would be handed from an arena to its slabs, for this test alone.
    monkeypatch.setattr(float_copy_cpu, "MOST_BYTES", 4 * 2 * layer.kv_heads * 400 * layer.head_dim)
    policy = AttentionPolicy(threshold=1, launch_tokens=64, unpack=True)
    kept = set()

    @settings(max_examples=10)
    @given(OPERATIONS)
    # One processor stored other codes here.
    @example([("join", 0, 40), ("step", 0, 0), ("join", 0, 13), ("join", 2, 67), ("step", 0, 0)])
    def run(operations: list[tuple[str, int, int]]) -> None:
        companies = [Company(replace(loaded, policy=policy)) for _ in range(2)]
        companies[0].arena.floats = True
        for kind, first, second in [("join", 0, 9)] * 3 + [("step", 0, 0)] * 2 + operations:
            logits = []
            for company in companies:
                if kind == "join":
                    company.join(first, second)
                elif company.alone and kind == "leave":
                    company.leave(first % len(company.alone))
                elif company.alone:
                    logits.append(company.step_together()[1])
            if logits and a_code_apart(*(company.arena for company in companies)):
                # They are other agents from now on.
                return
            assert not logits or mx.allclose(logits[0], logits[1], atol=1e-4)
            kept.add(companies[0].arena.nbytes - companies[1].arena.nbytes)

    run()
    # Nothing, then what three rows begin with.
    assert {0, len(loaded.spec.layers) * 4 * 2 * layer.kv_heads * 200 * layer.head_dim} <= kept


def a_code_apart(one: Arena, other: Arena) -> bool:
    """Whether a row's last token has another code, the next one, in one of them: what was to be
    stored lay between two, and a last bit decided."""
    apart = False
    for row, end in enumerate(one.table.lengths):
        ours, theirs = (arena.export(row, int(end) - 1, int(end)).groups for arena in (one, other))
        for mine, others in zip(ours, theirs, strict=True):
            assert all(mx.allclose(mine[i], others[i], atol=1e-4) for i in ("scales", "biases"))
            codes = [np.array(group["codes"]).view(np.uint8) for group in (mine, others)]
            halves = [np.stack([code & 15, code >> 4]).astype(int) for code in codes]
            steps = np.abs(halves[0] - halves[1]).max()
            assert steps <= 1
            apart |= bool(steps)
    return apart


@pytest.mark.skipif(not on_cpu(), reason="only a CPU has float64")
@pytest.mark.parametrize("wrong", [-1, 1, 8])
def test_a_beginning_that_is_miscounted_is_caught(loaded: LoadedModel, wrong: int) -> None:
    """A shorter one is no bug; a longer one reads what is the first row's alone."""
    company = Company(loaded)
    for own in (20, 40, 60):
        company.join(0, own)

    @bug(SlotTable, "shared")
    def miscounted(true: Any) -> Any:
        return lambda table, slab: found + wrong if (found := true(table, slab)) else 0

    with seeded(miscounted):
        assert company.step() == (wrong < 0)


def test_the_packed_path_is_pinned_alone(
    load_grid: Callable[..., LoadedModel], calls: list[tuple[int, int]]
) -> None:
    loaded = load_grid()
    company = Company(replace(loaded, policy=Noting(loaded.policy.mode)))
    for own in (20, 40, 60):
        company.join(0, own)

    assert company.step()
    assert not calls


def test_one_step_together_is_the_step_apart_but_for_rounding(
    calls: list[tuple[int, int]],
) -> None:
    random = load_model(lambda: (tiny_model(), PlainTokenizer()), ModelOptions())
    random = replace(random, policy=Noting("auto", threshold=2, launch_tokens=64))
    company = Company(random)
    for own in (20, 40, 60):
        company.join(0, own)
    arena, fed = company.arena, mx.ones((3, 1), dtype=mx.int32)

    together = arena.forward(random.model, fed)
    for row, length in enumerate(arena.table.lengths):
        arena.table.set_length(row, length - 1)
    for layer in arena.layers:
        assert isinstance(layer, KVLayer)
        layer.policy = Apart("auto", threshold=2, launch_tokens=64)
    apart = arena.forward(random.model, fed)

    assert calls == [(3, len(BEGINNING))] * len(random.spec.layers)
    error = float(mx.abs(together - apart).max() / mx.sqrt(mx.var(apart)))
    print(f"error {error:.1e} of the logits' deviation")
    assert error < 1e-4


@pytest.mark.parametrize("counts", [[1, 5, 3], [4, 4, 4]])
def test_several_tokens_of_each_row_read_their_trunk_once_for_all(
    calls: list[tuple[int, int]], counts: list[int]
) -> None:
    random = load_model(lambda: (tiny_model(), PlainTokenizer()), ModelOptions())
    found = []

    for policy in (Noting, Apart):
        loaded = replace(random, policy=policy("auto", threshold=2, launch_tokens=64, unpack=True))
        side = Side(loaded, new_arena(loaded), reads=True)
        pieces = beginning(loaded, BEGINNING, 128)
        for name in range(3):
            side.join(name, pieces, 2, prompt_of(9 + name))
        calls.clear()
        fed = {name: prompt_of(count) for name, count in enumerate(counts)}
        logits = side.step(fed) if len(set(counts)) == 1 else side.flat(fed)
        found.append(mx.concatenate([logits[name] for name in range(3)]))
        assert len(calls) == (len(random.spec.layers) if policy is Noting else 0)

    together, apart = found
    assert float(mx.abs(together - apart).max() / mx.sqrt(mx.var(apart))) < 1e-4


# -- what it costs -------------------------------------------------------------------------


@pytest.mark.skipif(not on_cpu(), reason="only a CPU has float64")
def test_a_step_together_stays_within_its_work_space(loaded: LoadedModel) -> None:
    space = WorkSpace.measure(loaded)
    company = Company(loaded)
    for _ in range(12):
        company.join(0, 30)
    arena = company.arena
    fed = mx.ones((len(arena), 1), dtype=mx.int32)
    mx.eval(arena.forward(loaded.model, fed))
    before = mx.get_active_memory()
    mx.reset_peak_memory()

    mx.eval(arena.forward(loaded.model, fed))

    keys = arena.table.extent(max(arena.table.lengths))
    allowed = space.decode(len(arena), keys, arena.table.shared(0))
    assert arena.table.shared(0) == len(BEGINNING)
    assert mx.get_peak_memory() - before <= allowed
