"""A device whose quantized products are wrong is found at start, named once, and worked around."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from seeded import bug, seeded

from kvactors.actors import AgentSystem, Sampling
from kvactors.core.attention.policy import AttentionPolicy
from kvactors.core.engine.engine import Engine
from kvactors.core.model import device_probe
from kvactors.core.model.device_probe import probe_products
from kvactors.core.model.load import LoadedModel, load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.quant.products import multiply_codes
from kvactors.core.schedule.sampling import Sampling as EngineSampling
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.models import PlainTokenizer, tiny_llama, tiny_model

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 8
WAIT = 60
Product = Callable[..., mx.array]
true: Product = multiply_codes


def zeros_beyond_1024_keys(x: mx.array, *args: Any, **how: Any) -> mx.array:
    found = true(x, *args, **how)
    return found * 0 if x.shape[-1] >= 1024 else found


def strides_of_one_row(x: mx.array, *args: Any, **how: Any) -> mx.array:
    found = true(x, *args, **how)
    return mx.broadcast_to(found[..., :1, :], found.shape) if x.shape[-2] in (2, 3) else found


def the_last_key_is_lost(x: mx.array, *args: Any, **how: Any) -> mx.array:
    if how["transposed"] or x.shape[-1] % 2 == 0:
        return true(x, *args, **how)
    return true(mx.concatenate([x[..., :-1], x[..., -1:] * 0], axis=-1), *args, **how)


def not_a_number(x: mx.array, *args: Any, **how: Any) -> mx.array:
    return true(x, *args, **how) * mx.nan


def load(**options: Any) -> LoadedModel:
    return load_model(lambda: (tiny_model(), PlainTokenizer()), ModelOptions(**options))


@pytest.mark.parametrize("kv_bits", [4, 8, None])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_this_device_is_right(
    kv_bits: int | None, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load(kv_bits=kv_bits, dtype=dtype)

    assert probe_products(loaded) is loaded
    assert not caplog.records


@pytest.mark.parametrize(
    ("fault", "named", "innocent"),
    [
        (zeros_beyond_1024_keys, "1x1024x64 not transposed, 4 bits", "1x1023x64"),
        (strides_of_one_row, "2x64x1023 transposed, 4 bits", "4x64x1023"),
        (the_last_key_is_lost, "1x1023x64 not transposed, 4 bits", "1x1024x64"),
        (not_a_number, "1x64x4096 transposed, 4 bits", "8 bits"),
    ],
)
def test_a_fault_is_named_by_its_shapes_once(
    fault: Product,
    named: str,
    innocent: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    loaded = load(attention="packed")

    fallen = [probe_products(loaded, seconds=WAIT, product=fault) for _ in range(2)]

    assert [found.policy.mode for found in fallen] == ["dequantize"] * 2
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert named in record.getMessage()
    assert innocent not in record.getMessage()


def test_on_a_gpu_more_keys_and_queries_are_tried(caplog: pytest.LogCaptureFixture) -> None:
    loaded = load(attention="packed")

    def wrong_of_many(x: mx.array, *args: Any, **how: Any) -> mx.array:
        found = true(x, *args, **how)
        return found * 0 if x.shape[-1] >= 8192 or x.shape[-2] > 8 else found

    with seeded(bug(device_probe, "on_cpu")(lambda _: lambda: False)):
        found = probe_products(loaded, seconds=WAIT, product=wrong_of_many)

    assert found.policy.mode == "dequantize"
    (record,) = caplog.records
    assert "1x8192x64 not transposed, 4 bits" in record.getMessage()
    assert "16x64x1023 transposed, 4 bits" in record.getMessage()


def test_a_probe_ends_after_its_second() -> None:
    loaded = load()
    asked: list[int] = []

    def counted(x: mx.array, *args: Any, **how: Any) -> mx.array:
        asked.append(x.shape[-2])
        return true(x, *args, **how)

    ticks = iter(range(100))

    assert probe_products(loaded, product=counted, clock=lambda: next(ticks) * 0.3) is loaded
    assert len(asked) == 4


def test_on_a_faulty_device_agents_answer_without_its_products(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[int] = []

    @bug(mx, "quantized_matmul")
    def faulty(true: Product) -> Product:
        def zeros(x: mx.array, *args: Any, **how: Any) -> mx.array:
            calls.append(1)
            return true(x, *args, **how) * 0

        return zeros

    def answer(**options: Any) -> tuple[int, ...]:
        with AgentSystem(tiny_llama(), store=False, **options) as system:
            calls.clear()
            sampling = Sampling(max_tokens=12)
            token_ids: tuple[int, ...] = (
                system.spawn("a").ask(PROMPT, sampling=sampling).get(timeout=WAIT).token_ids
            )
        return token_ids

    with seeded(faulty):
        answers = {answer(), answer(attention="packed")}
        assert not calls

    assert answers == {answer(attention="dequantize")}
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_without_the_probe_a_faulty_device_answers_wrongly(
    make_engine: Callable[..., Engine],
) -> None:
    loaded = replace(load(), policy=AttentionPolicy("packed"))

    def answer() -> list[int]:
        request = make_request("a", [], PROMPT, EngineSampling(max_tokens=12))
        return run_engine(make_engine(loaded), [(0, request)])["a"].request.generated

    expected = answer()

    @bug(mx, "quantized_matmul")
    def faulty(true: Product) -> Product:
        return lambda *args, **how: true(*args, **how) * 0

    with seeded(faulty):
        assert answer() != expected
