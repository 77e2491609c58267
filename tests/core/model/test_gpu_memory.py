"""What a GPU's memory is, and stays, on machines that no test runs on."""

import os
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from seeded import bug, seeded

from kvactors.core.engine.launch import device_memory
from kvactors.core.quant import device
from kvactors.core.quant.device import bits_of

GIB = 1 << 30
PAGES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({"free_memory": 20 * GIB, "total_memory": 24 * GIB}, 20 * GIB),
        ({"max_recommended_working_set_size": 12 * GIB, "memory_size": 16 * GIB}, 12 * GIB),
        ({"architecture": "x86_64"}, PAGES),
    ],
    ids=["CUDA", "Metal", "a CPU"],
)
def test_memory_is_the_devices_own(told: dict[str, Any], found: int) -> None:
    @bug(mx, "device_info")
    def another_device(_: Any) -> Any:
        return lambda: told

    @bug(mx, "get_active_memory")
    def nothing_is_used(_: Any) -> Any:
        return lambda: 0

    with seeded(another_device), seeded(nothing_is_used):
        assert device_memory() == found


@pytest.mark.parametrize("cuda", [True, False])
@pytest.mark.parametrize(
    "dtype", [mx.bool_, mx.int8, mx.float16, mx.bfloat16, mx.float32, mx.uint32, mx.int64]
)
def test_what_numpy_reads_has_all_bits_and_on_cuda_the_array_is_left_alone(
    dtype: mx.Dtype, cuda: bool
) -> None:
    @bug(device, "on_cuda")
    def another_device(_: Any) -> Any:
        return lambda: cuda

    array = mx.array([[0.0, -0.0, 1.0, 3.5]]).astype(dtype)
    mx.eval(array)

    with seeded(another_device):
        read = np.array(bits_of(array), copy=False)

    own = np.array(array.view(mx.uint8), copy=False)
    assert read.tobytes() == own.tobytes()
    assert np.shares_memory(read, own) is not cuda
