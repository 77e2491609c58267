"""What is measured at load, on devices of which time is modelled: a launch, reading, waiting."""

from collections.abc import Callable
from typing import Any

import pytest

from kvactors.core.cache.spec import LayerSpec
from kvactors.core.model.calibrate import measure_launch_tokens, measure_threshold

LAYER = LayerSpec("full", 8, 128, 4, 64, "float16")
LAUNCHED = 36e-6
WAITED = 200e-6
READ = 100e9  # bytes a second


def gpu(cold: float) -> Callable[..., float]:
    """Times of a GPU, whose first waits are longer by a factor of `cold`: floats take eight times
    the bytes of codes."""
    calls = 0

    def timed(product: Any, pool: Any, extent: int, *args: Any, times: int = 1) -> float:
        nonlocal calls
        calls += 1
        factor = 8 if args[-1].path == "dequantize" else 1
        read = extent * LAYER.bytes_per_token() * factor / READ
        return WAITED * (1 + cold * 0.9**calls) + times * (LAUNCHED + read)

    return timed


@pytest.mark.parametrize("cold", [0, 3])
def test_on_a_gpu_a_slab_costs_what_its_launches_take_and_not_what_waiting_does(
    cold: float,
) -> None:
    worth = LAUNCHED * READ / LAYER.bytes_per_token()

    found = measure_launch_tokens(LAYER, cpu=False, timed=gpu(cold))

    assert worth / 1.2 < found < worth * 1.2


@pytest.mark.parametrize("cold", [0, 3])
def test_on_a_gpu_codes_are_read_where_floats_take_longer_however_long_is_waited(
    cold: float,
) -> None:
    assert measure_threshold(LAYER, cpu=False, timed=gpu(cold)) == 16
