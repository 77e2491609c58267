"""Kernels for an NVIDIA GPU, run on a CPU: their very source, by the C++ compiler of the machine.

Barriers, shuffles and shared memory are those of `cuda_on_cpu.h`. Outputs are no numbers before a
kernel writes them, and nor is shared memory before a block does.
"""

import ctypes
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from seeded import bug

__all__ = ["on_this_cpu"]

# Sections and contexts are those of Linux.
_COMPILER = shutil.which("g++") if sys.platform == "linux" else None
_SHIM = Path(__file__).with_suffix(".h")
_TYPES = {
    mx.float32: "float",
    mx.float16: "_Float16",
    mx.bfloat16: "bfloat16",
    mx.uint32: "uint32_t",
    mx.bool_: "bool",
}
_built: dict[str, ctypes.CDLL] = {}
_rooms: list[Any] = []


@bug(mx.fast, "cuda_kernel")
def on_this_cpu(_true: Any) -> Any:
    """`mx.fast.cuda_kernel`, for this CPU."""
    return _Kernel


class _Kernel:
    def __init__(
        self,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str = "",
        *,
        ensure_row_contiguous: bool = True,
    ) -> None:
        assert not ensure_row_contiguous
        self._names, self._inputs = [*input_names, *output_names], len(input_names)
        self._source, self._header = source, header

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array],
        output_shapes: Sequence[tuple[int, ...]],
        output_dtypes: Sequence[mx.Dtype],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: Sequence[tuple[str, int]] = (),
    ) -> list[mx.array]:
        found = [
            np.full(shape, 0xFFFF if dtype != mx.float32 else np.nan, _numpy(dtype))
            for shape, dtype in zip(output_shapes, output_dtypes, strict=True)
        ]
        views = [_view(array) for array in inputs]
        kept = [_aligned(view) for view in views]
        places = [*kept, *(array.ctypes.data for array in found)]
        dtypes = [*(array.dtype for array in inputs), *output_dtypes]
        source = self._whole(dtypes, template)
        blocks = [-(-all_ // one) for all_, one in zip(grid, threadgroup, strict=True)]
        _compiled(source).launch(
            (ctypes.c_void_p * len(places))(*places),
            _rows(ctypes.c_int, [view.shape for view in views]),
            _rows(ctypes.c_int64, [[step // v.itemsize for step in v.strides] for v in views]),
            (ctypes.c_int * 3)(*blocks),
            threadgroup[0],
        )
        _rooms.clear()
        pairs = zip(found, output_dtypes, strict=True)
        return [mx.array(a) if d == mx.float32 else mx.array(a).view(d) for a, d in pairs]

    def _whole(self, dtypes: Sequence[mx.Dtype], template: Sequence[tuple[str, int]]) -> str:
        declared = [
            f"auto* {name} = ({_TYPES[dtype]}*)arrays[{index}];"
            for index, (name, dtype) in enumerate(zip(self._names, dtypes, strict=True))
        ]
        declared += [
            f"auto* {name}_shape = shapes[{index}]; auto* {name}_strides = strides[{index}];"
            for index, name in enumerate(self._names[: self._inputs])
        ]
        told = [f"constexpr int {name} = {value};" for name, value in template]
        body = "\n".join((*declared, *told, self._source))
        head = f'#include "{_SHIM}"\n{self._header}\n'
        return (
            head
            + f"static void kernel(void** arrays, int** shapes, int64_t** strides) {{\n{body}\n}}\n"
        )


def _numpy(dtype: mx.Dtype) -> Any:
    return {4: np.float32, 2: np.uint16}[dtype.size]


def _view(array: mx.array) -> np.ndarray[Any, Any]:
    """What an array is, where it is: NumPy has no bfloat16."""
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array, copy=False)


def _aligned(view: np.ndarray[Any, Any]) -> int:
    """Where a copy of the bytes that a view spans stands, at an address as a GPU has it."""
    steps = zip(view.shape, view.strides, strict=True)
    span = sum((count - 1) * step for count, step in steps) + view.itemsize
    room = ctypes.create_string_buffer(span + 256)
    _rooms.append(room)
    place = -(-ctypes.addressof(room) // 256) * 256
    ctypes.memmove(place, view.ctypes.data, span)
    return place


def _rows(kind: Any, rows: Sequence[Sequence[int]]) -> Any:
    """An array of arrays."""
    kept = [(kind * max(1, len(row)))(*row) for row in rows]
    found = (ctypes.POINTER(kind) * len(rows))(
        *(ctypes.cast(r, ctypes.POINTER(kind)) for r in kept)
    )
    found.kept = kept
    return found


def _compiled(source: str) -> ctypes.CDLL:
    name = hashlib.sha256(source.encode()).hexdigest()[:16]
    if name not in _built:
        if _COMPILER is None:
            pytest.skip("the kernels run on a CPU where there is g++, on Linux")
        with tempfile.TemporaryDirectory() as folder:
            code, library = Path(folder, "kernel.cpp"), Path(folder, f"{name}.so")
            code.write_text(source, encoding="utf-8")
            command = [_COMPILER, "-std=c++20", "-O1", "-shared", "-fPIC", "-Wno-unknown-pragmas"]
            done = subprocess.run(
                [*command, code, "-o", library], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            _built[name] = ctypes.CDLL(str(library))
    return _built[name]
