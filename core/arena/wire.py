"""KV as bytes: what crosses threads and what is written to disk. GPU thread only.

A piece becomes raw tensors (name, dtype, shape, bytes), one for each array of each layer
group, and a layout: JSON that says for every layer its kind, dims, bits, group size and
scale dtype. Arrays themselves never leave the GPU thread, but views of their memory do: who
has one may read it, and let go of it.
"""

import json
from math import prod
from typing import Any

import mlx.core as mx
import numpy as np

from kvactors.core.arena.pieces import Piece
from kvactors.core.cache.segment import RawTensor
from kvactors.core.cache.spec import LayerSpec, ModelCacheSpec
from kvactors.core.quant.codec import Arrays, array_widths, encode
from kvactors.core.quant.device import bits_of

__all__ = [
    "FORMAT_VERSION",
    "copied",
    "encode_floats",
    "from_raw",
    "layout",
    "misfit",
    "same_bytes",
    "to_raw",
]

FORMAT_VERSION = 1

_DTYPES = {
    "uint32": "U32",
    "int64": "I64",
    "int32": "I32",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
}
_NAMES = {short: name for name, short in _DTYPES.items()}
# Dtype and shape.
_Form = tuple[str, tuple[int, ...]]


def layout(spec: ModelCacheSpec) -> str:
    """The JSON description of every layer that goes into a segment."""
    layers = [_layer_layout(layer) for layer in spec.layers]
    return json.dumps({"version": FORMAT_VERSION, "layers": layers}, sort_keys=True)


def _layer_layout(layer: LayerSpec) -> dict[str, Any]:
    keys, values = layer.sides
    layout: dict[str, Any] = {
        "kind": layer.kind,
        "kv_heads": layer.kv_heads,
        "key_dim": keys.dim,
        "value_dim": values.dim,
        "key_bits": keys.bits,
        "value_bits": values.bits,
        "group_size": keys.group_size,
        "dtype": layer.dtype,
    }
    if values.group_size != keys.group_size:
        layout["value_group_size"] = values.group_size
    if layer.window is not None:
        layout["window"] = layer.window
    if layer.states:
        layout["states"] = layer.states
    return layout


def to_raw(piece: Piece) -> tuple[RawTensor, ...]:
    """An evaluated piece as bytes. They are not copied: a piece never changes, and what looks at
    its memory keeps it."""
    return tuple(
        (f"g{index}.{name}", _DTYPES[_dtype_name(array)], tuple(array.shape), _to_bytes(array))
        for index, group in enumerate(piece.groups)
        for name, array in sorted(group.items())
    )


def misfit(tensors: tuple[RawTensor, ...], start: int, end: int, spec: ModelCacheSpec) -> str:
    """What of `tensors` is not what tokens [start, end) have in layers as in `spec`; "" if all is.
    A layout says what they should be, not what they are: a file may come from anybody."""
    there = {name: (dtype, tuple(shape)) for name, dtype, shape, _ in tensors}
    if len(there) < len(tensors):
        return "a tensor is there twice"
    for index, group in enumerate(spec.groups()):
        layer = spec.layers[group[0]]
        due = {f"g{index}.{name}": one for name, one in _due(layer, len(group), start, end).items()}
        found = {name: there.pop(name) for name in due if name in there}
        if found != due and not (layer.checkpointed and not found):
            return f"layers {group} should have {due}, not {found}"
    if there:
        return f"no layer has {sorted(there)}"
    for name, dtype, shape, data in tensors:
        if memoryview(data).nbytes != prod(shape) * getattr(mx, _NAMES[dtype]).size:
            return f"{name} has {memoryview(data).nbytes} bytes"
    return ""


def _due(layer: LayerSpec, layers: int, start: int, end: int) -> dict[str, _Form]:
    """The arrays of so many such `layers`, by name."""
    if layer.states:
        return {
            f"s{index}": (_DTYPES[dtype], (layers, *shape))
            for index, (shape, dtype) in enumerate(layer.states)
        }
    tokens = end - start if layer.window is None else min(end, layer.window)
    return {
        name: (_DTYPES[_name_of(dtype)], (layers, sides, layer.kv_heads, tokens, width))
        for name, (sides, width, dtype) in array_widths(layer).items()
    }


def from_raw(tensors: tuple[RawTensor, ...], start: int, end: int, spec: ModelCacheSpec) -> Piece:
    """Arrays of tokens [start, end) from the bytes of `tensors`, evaluated; layers as in `spec`."""
    found: list[Arrays] = [{} for _ in spec.groups()]
    for name, dtype, shape, data in tensors:
        group, _, array_name = name.partition(".")
        found[int(group[1:])][array_name] = _from_bytes(data, _NAMES[dtype], shape)
    mx.eval(found)
    return Piece(start, end, tuple(found), spec)


def copied(piece: Piece) -> Piece:
    """Another piece with the same bytes, evaluated."""
    return from_raw(to_raw(piece), piece.start, piece.end, piece.spec)


def same_bytes(piece: Piece, tensors: tuple[RawTensor, ...]) -> bool:
    """Whether these are the bytes of an evaluated piece."""
    ours = {tensor[0]: tensor for tensor in to_raw(piece)}
    theirs = {tensor[0]: tensor for tensor in tensors}
    return ours.keys() == theirs.keys() and all(
        _same(tensor, theirs[name]) for name, tensor in ours.items()
    )


def _same(one: RawTensor, other: RawTensor) -> bool:
    (_, dtype, shape, data), (_, as_dtype, as_shape, as_data) = one, other
    if (dtype, tuple(shape)) != (as_dtype, tuple(as_shape)):
        return False
    return np.array_equal(np.frombuffer(data, np.uint8), np.frombuffer(as_data, np.uint8))


def encode_floats(layer: LayerSpec, floats: RawTensor) -> tuple[RawTensor, ...]:
    """Float KV of another program, [2, kv_heads, tokens, head_dim], as this layer stores it."""
    _, dtype, shape, data = floats
    array = _from_bytes(data, _NAMES[dtype], shape).astype(getattr(mx, layer.dtype))
    arrays = encode(layer, array[0, ...], array[1, ...])
    mx.eval(arrays)
    return tuple(
        # Copied: a whole file's would be held as arrays that nobody counts.
        (name, _DTYPES[_dtype_name(array)], tuple(array.shape), bytes(_to_bytes(array)))
        for name, array in arrays.items()
    )


def _dtype_name(array: mx.array) -> str:
    return _name_of(array.dtype)


def _name_of(dtype: mx.Dtype) -> str:
    return str(dtype).rpartition(".")[2]


def _to_bytes(array: mx.array) -> bytes | memoryview:
    view = np.array(bits_of(array), copy=False)
    # Of strided or empty arrays there is no flat view.
    return view.data.cast("B") if view.size and view.flags.c_contiguous else view.tobytes()


def _from_bytes(data: bytes | memoryview, dtype: str, shape: tuple[int, ...]) -> mx.array:
    plain: Any = "uint16" if dtype == "bfloat16" else dtype
    array = mx.array(np.frombuffer(data, dtype=plain).reshape(shape))
    return array.view(mx.bfloat16) if dtype == "bfloat16" else array
