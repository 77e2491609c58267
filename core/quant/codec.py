"""How keys and values are stored: MLX's affine codes, or floats as they are. GPU thread only.

A layer's arrays have the shape [sides, ..., width]. Where keys and values are stored alike, index
0 holds keys and index 1 values: three arrays when quantized (codes, scales, biases), one in float.
Where they differ each side has its own arrays, named "k.codes", "v.codes" and so on.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx

from kvactors.core.cache.spec import LayerSpec, Side
from kvactors.core.quant.device import on_cpu

__all__ = [
    "PRECISION",
    "Arrays",
    "Stored",
    "StoredKV",
    "array_widths",
    "dequantize",
    "encode",
    "to_float",
]

# Of scores, softmax and sums, whatever the model's dtype.
PRECISION = mx.float32

Arrays = dict[str, mx.array]

Stored = tuple[mx.array, ...]
"""Codes, scales and biases; or one array of floats; or none, where a side has no numbers."""


@dataclass(frozen=True, slots=True)
class StoredKV:
    """Keys and values of some rows, each array [1, rows, kv_heads, tokens, width]: as stored, or as
    floats. The axis in front spares an operation for each array. The first `begin` tokens of the
    rows are not among them."""

    keys: Stored
    values: Stored
    sides: tuple[Side, Side]
    begin: int = 0

    def rows(self, some: slice) -> "StoredKV":
        """Those of some rows."""
        keys, values = (tuple(array[:, some] for array in one) for one in (self.keys, self.values))
        return StoredKV(keys, values, self.sides, self.begin)

    def beyond(self, tokens: int) -> "StoredKV":
        """Those behind the first `tokens` of each row."""
        left = tokens - self.begin
        keys, values = (
            tuple(array[:, :, :, left:] for array in one) for one in (self.keys, self.values)
        )
        return StoredKV(keys, values, self.sides, tokens)

    def floats(self, dtype: Any = PRECISION) -> tuple[mx.array, mx.array]:
        """Keys and values as floats, [rows, kv_heads, tokens, dim]."""
        keys, values = self.sides
        # An index would copy them.
        return (
            to_float(self.keys, keys, dtype).squeeze(0),
            to_float(self.values, values, dtype).squeeze(0),
        )


def array_widths(layer: LayerSpec) -> dict[str, tuple[int, int, Any]]:
    """Name -> (sides, last dimension, dtype) of a layer's arrays."""
    keys, values = layer.sides
    if keys == values:
        return {name: (2, *width) for name, width in _side_widths(keys, layer.dtype).items()}
    return {
        f"{prefix}.{name}": (1, *width)
        for prefix, side in (("k", keys), ("v", values))
        for name, width in _side_widths(side, layer.dtype).items()
    }


def _side_widths(side: Side, dtype_name: str) -> dict[str, tuple[int, Any]]:
    dtype = getattr(mx, dtype_name)
    if side.dim == 0:
        return {}
    if side.bits is None or side.group_size is None:
        return {"values": (side.dim, dtype)}
    groups = side.dim // side.group_size
    return {
        "codes": (side.dim * side.bits // 32, mx.uint32),
        "scales": (groups, dtype),
        "biases": (groups, dtype),
    }


def encode(layer: LayerSpec, keys: mx.array, values: mx.array) -> Arrays:
    """Bring `keys` and `values`, [..., dim], into the form of `layer`, [sides, ..., width]."""
    first, second = layer.sides
    if first == second:
        return _encode_side(first, mx.stack([keys, values]))
    return {
        f"{prefix}.{name}": array
        for prefix, side, floats in (("k", first, keys), ("v", second, values))
        for name, array in _encode_side(side, floats[None]).items()
    }


def _encode_side(side: Side, floats: mx.array) -> Arrays:
    if side.dim == 0:
        return {}
    if side.bits is None or side.group_size is None:
        return {"values": floats}
    codes, scales, biases = mx.quantize(floats, group_size=side.group_size, bits=side.bits)
    return {"codes": codes, "scales": scales, "biases": biases}


def to_float(stored: Stored, side: Side, dtype: Any = mx.float32) -> mx.array:
    """What is `stored` as `side` says, [..., keys, width], as numbers [..., keys, dim] of this
    `dtype`; from float32 on every number is kept."""
    if len(stored) == 1:
        return stored[0].astype(dtype)
    return dequantize(stored, side, dtype)


def dequantize(stored: tuple[mx.array, ...], side: Side, dtype: Any) -> mx.array:
    """`stored` codes [..., keys, width], scales and biases of a `side` as numbers [..., keys, dim]
    of this `dtype`, the very ones of `mx.dequantize`.

    That is a dozen elementwise operations on the CPU. One times a row as long as all keys is
    one product there: four times as fast, ten times for few keys (bench/LOG.md).
    """
    codes, scales, biases = stored
    scales, biases = scales.astype(dtype), biases.astype(dtype)
    form: dict[str, Any] = {"group_size": side.group_size, "bits": side.bits}
    if codes.size and on_cpu() and _proven(mx.quantized_matmul, dtype, **form):
        return _times_one(codes, scales, biases, form)
    return mx.dequantize(codes, scales, biases, **form)


def _times_one(
    codes: mx.array, scales: mx.array, biases: mx.array, form: dict[str, Any]
) -> mx.array:
    # Of fewer than three axes the one would not be repeated for all.
    one, shape = mx.array([[[1.0]]], scales.dtype), codes.shape
    if shape[-2] == 1:
        return mx.quantized_matmul(one, codes, scales, biases, False, **form)
    codes, scales, biases = (a.flatten(-2)[..., None, :] for a in (codes, scales, biases))
    return mx.quantized_matmul(one, codes, scales, biases, False, **form).reshape(*shape[:-1], -1)


@cache
def _proven(_product: Any, dtype: Any, **form: Any) -> bool:
    """Whether this product, MLX's, gives these numbers here: some kernels are wrong, or missing.
    One that was put in its place is proven anew."""
    if dtype == mx.float64:
        return False
    noise = mx.random.normal((2, 63, 2 * form["group_size"]), dtype, key=mx.random.key(0))
    codes, scales, biases = mx.quantize(noise, **form)
    expected = mx.dequantize(codes, scales, biases, **form)
    return all(
        bool(mx.array_equal(_times_one(*stored, form), numbers))
        for stored, numbers in (
            ((codes, scales, biases), expected),
            ((codes[:, :1], scales[:, :1], biases[:, :1]), expected[:, :1]),
        )
    )
