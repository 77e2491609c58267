"""The linear seam: few rows times parts of a model's weights say what the whole would."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Thread
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from makers import LoadGrid, MakeEngine

from kvactors.core.attention import linear_cpu
from kvactors.core.attention.linear_cpu import (
    LEAST_WIDTH,
    SMALL_PRODUCT,
    in_parts,
    multiply_parts,
    watch_parts,
)
from kvactors.core.attention.policy import AttentionPolicy
from kvactors.core.model import calibrate
from kvactors.core.model.load import choose_policy, load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.quant.device import on_cpu, on_cuda
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.families import build
from kvactors.core.testing.models import PlainTokenizer, tiny_model


@pytest.fixture(autouse=True, scope="module")
def installed() -> None:
    linear_cpu.install()


@pytest.fixture
def taken() -> Iterator[list[tuple[int, int]]]:
    """(rows, parts) of each product that was taken in parts."""
    with watch_parts() as products:
        yield products


def whole_numbers(*shape: int) -> mx.array:
    """Whose products are exact, however they are summed."""
    return mx.random.randint(-8, 8, shape, key=mx.random.key(len(shape))).astype(mx.float32)


def parts_of(rows: int, inner: int, outer: int) -> int:
    return linear_cpu.parts_of(mx.zeros((rows, inner)), mx.zeros((outer, inner)))


@settings(max_examples=60)
@given(
    shape=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    inner=st.sampled_from([256, 300, 1024]),
    outer=st.sampled_from([8, 1187, 2048, 4100, 6 * 1187]),
    bias=st.booleans(),
)
def test_a_layer_says_the_same_in_parts(
    shape: list[int], inner: int, outer: int, bias: bool
) -> None:
    layer = nn.Linear(inner, outer, bias=bias)
    layer.weight = whole_numbers(outer, inner)
    if bias:
        layer.bias = whole_numbers(outer)
    x = whole_numbers(*shape, inner)

    with in_parts(wanted=True):
        product = layer(x)

    assert product.shape == (*shape, outer)
    assert mx.array_equal(product, layer(x))


def test_an_embedding_says_the_same_in_parts_as_output_layer() -> None:
    layer = nn.Embedding(8192, 512)
    layer.weight, x = whole_numbers(8192, 512), whole_numbers(2, 1, 512)
    assert parts_of(2, 512, 8192) > 1

    with in_parts(wanted=True):
        product = layer.as_linear(x)

    assert mx.array_equal(product, layer.as_linear(x))


@settings(max_examples=200)
@given(st.integers(1, 8), st.integers(256, 8192), st.integers(1, 200_000))
def test_parts_are_equal_small_and_as_few_as_can_be(rows: int, inner: int, outer: int) -> None:
    parts = parts_of(rows, inner, outer)

    assert outer % parts == 0
    if rows * inner * outer <= SMALL_PRODUCT:
        assert parts == 1
    if parts > 1:
        assert rows * inner * (outer // parts) <= SMALL_PRODUCT
        assert outer // parts >= LEAST_WIDTH
    fewer = [n for n in range(1, parts) if outer % n == 0]
    assert all(rows * inner * (outer // n) > SMALL_PRODUCT for n in fewer)


@pytest.mark.parametrize(
    ("rows", "inner", "outer", "dtype"),
    [
        (9, 1024, 2048, mx.float32),
        (1, 128, 65_536, mx.float32),
        (2, 1024, 2048, mx.float16),
        (2, 1024, 100_003, mx.float32),
        pytest.param(
            *(0, 1024, 2048, mx.float32),
            marks=pytest.mark.skipif(on_cuda(), reason="MLX's CUDA build ends the process"),
        ),
    ],
    ids=["many rows", "short rows", "halves", "a prime number of columns", "no row"],
)
def test_what_gains_nothing_is_multiplied_whole(
    rows: int, inner: int, outer: int, dtype: mx.Dtype
) -> None:
    layer = nn.Linear(inner, outer)
    layer.set_dtype(dtype)
    x = mx.ones((rows, inner), dtype)
    assert linear_cpu.parts_of(x, layer.weight) == 1

    with in_parts(wanted=True):
        product = layer(x)

    assert mx.array_equal(product, layer(x))


class Scaled(nn.Embedding):  # type: ignore[misc]
    """A user's own, whose weights are made when they are asked for, and which has a bias."""

    def __init__(self) -> None:
        super().__init__(2048, 1024)
        self.table = whole_numbers(2048, 1024)
        self.bias = whole_numbers(2048)
        del self["weight"]

    @property
    def weight(self) -> mx.array:
        return 2 * self.table

    def as_linear(self, x: mx.array) -> mx.array:
        out: mx.array = super().as_linear(x) + self.bias
        return out


def test_a_layer_of_a_users_own_keeps_its_meaning() -> None:
    layer, x = Scaled(), whole_numbers(2, 1024)

    with in_parts(wanted=True):
        product = layer.as_linear(x)

    assert mx.array_equal(product, layer.as_linear(x))
    assert mx.array_equal(product, 2 * x @ layer.table.T + layer.bias)


def test_rows_that_do_not_fit_get_mlxs_own_error() -> None:
    layer = nn.Linear(1024, 2048)

    with in_parts(wanted=True), pytest.raises(ValueError, match="shape"):
        layer(mx.ones((2, 512)))


def test_outside_of_a_step_and_in_other_threads_the_layer_is_mlxs_own(
    taken: list[tuple[int, int]],
) -> None:
    layer, x = nn.Linear(1024, 2048), mx.ones((2, 1024))
    layer(x)
    with in_parts(wanted=True):
        thread = Thread(target=lambda: layer(x))
        thread.start()
        thread.join()
        with in_parts(wanted=False):
            layer(x)
        assert not taken
        layer(x)
    layer(x)

    assert taken == [(2, 8)]


def test_the_seam_is_installed_once() -> None:
    before = nn.Linear.__call__, nn.Embedding.as_linear
    linear_cpu.install()

    assert (nn.Linear.__call__, nn.Embedding.as_linear) == before


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma2"])
def test_agents_say_the_same_in_parts(
    make_engine: MakeEngine, load_grid: LoadGrid, kind: str, taken: list[tuple[int, int]]
) -> None:
    # Large enough for two rows to be worth it.
    loaded, said = load_grid(kind=kind, hidden_size=256, intermediate_size=2048), []
    for parts in (False, True):
        policy = AttentionPolicy("packed", parts=parts)
        requests = [
            make_request(name, [], [3, 1, 4, 1, 5 + place], Sampling(max_tokens=8))
            for place, name in enumerate("abc")
        ]
        run_engine(make_engine(replace(loaded, policy=policy)), [(0, each) for each in requests])
        said.append([each.generated for each in requests])
        assert any(rows > 1 for rows, _ in taken) == parts

    assert said[0] == said[1]


def test_what_a_step_that_fails_wanted_is_forgotten(taken: list[tuple[int, int]]) -> None:
    layer, x = nn.Linear(1024, 2048), mx.ones((2, 1024))
    with pytest.raises(ZeroDivisionError), in_parts(wanted=True):
        raise ZeroDivisionError

    layer(x)

    assert not taken


@pytest.mark.parametrize(
    ("whole", "split", "found"),
    [(1.0, 0.5, True), (1.0, 0.95, False), (0.5, 1.0, False)],
    ids=["half as long", "hardly faster", "slower"],
)
def test_parts_are_taken_where_they_are_clearly_faster(
    whole: float, split: float, found: bool
) -> None:
    def timed(product: Callable[..., mx.array], *_: Any) -> float:
        return split if product is multiply_parts else whole

    assert calibrate.measure_parts(timed=timed) is found


def test_to_measure_leaves_the_random_state_of_the_process_alone() -> None:
    mx.random.seed(5)
    expected = float(mx.random.uniform())
    mx.random.seed(5)

    assert calibrate.measure_parts.__wrapped__() in (True, False)
    assert float(mx.random.uniform()) == expected


@pytest.mark.parametrize("found", [True, False])
@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("kind", ["llama", "mamba2"])
def test_a_cpu_takes_parts_where_they_were_faster(found: bool, cpu: bool, kind: str) -> None:
    def policy(**options: Any) -> AttentionPolicy:
        source, chosen = build(kind), ModelOptions(**options)
        spec = load_model(lambda: (source, PlainTokenizer()), chosen).spec
        return choose_policy(spec, chosen, cpu=cpu, faster_in_parts=lambda: found)

    assert policy().parts is (found and cpu)
    assert not policy(reproducible=True).parts
    assert not policy(attention="packed").parts
    assert not policy(attention="dequantize").parts


@pytest.mark.skipif(not on_cpu(), reason="of a CPU")
def test_weights_that_a_model_transposed_lie_straight_on_a_cpu() -> None:
    source = tiny_model()
    weight = source.layers[0].self_attn.q_proj.weight
    bent = mx.contiguous(weight.T).T
    source.layers[0].self_attn.q_proj.weight = bent
    mx.eval(bent)
    assert not np.array(bent, copy=False).flags.c_contiguous

    loaded = load_model(lambda: (source, PlainTokenizer()), ModelOptions())

    straight = loaded.model.layers[0].self_attn.q_proj.weight
    assert np.array(straight, copy=False).flags.c_contiguous
    assert mx.array_equal(straight, bent)
