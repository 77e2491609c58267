"""`mlx-lm`: the prompt-cache file of mlx_lm.models.cache (save_prompt_cache, 0.32).
Pure: any thread.

It is a safetensors file of the flattened list of cache states. For layer i:

    QuantizedKVCache   "i.0.0", "i.0.1", "i.0.2"   codes, scales, biases of the keys
                       "i.1.0", "i.1.1", "i.1.2"   of the values: [1, kv_heads, room, width]
                       "i.2", "i.3", "i.4"         tokens, group size, bits: int32 scalars
    KVCache            "i.0", "i.1", "i.2"         keys, values [1, kv_heads, room, head_dim],
                                                   tokens

Metadata, flattened likewise: "0.<name>" is the caller's, "1.i" the class of layer i, "2.j"
which tensors were Python scalars. mlx_lm.generate asks for "model" and "tokenizer_config".
The file has no token ids, so ours puts them beside those as "token_sequence".

KV of a transcript's last token is never kept here, and mlx_lm takes a prompt as what follows
the cache: a prompt that continues an exported agent begins with the tokens from
`total_tokens` on. mlx_lm.generate reads only files whose name ends in ".safetensors".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvactors.core.cache.segment import RawTensor
from kvactors.persistence.errors import ExportRejected, ImportRejected, ModelMismatch
from kvactors.persistence.formats.fields import Fields, TensorTable
from kvactors.persistence.formats.neutral import (
    Arrays,
    LayerLayout,
    PortableMemory,
    Target,
    Tensor,
    accepted,
)

__all__ = ["SUFFIX", "decode", "encode", "metadata_of"]

SUFFIX = ".safetensors"

_PARTS = ("codes", "scales", "biases")
_QUANTIZED, _FLOAT = "QuantizedKVCache", "KVCache"


def encode(memory: PortableMemory) -> tuple[list[RawTensor], dict[str, str]]:
    """Tensors and metadata, as save_prompt_cache writes them."""
    if not memory.model:
        raise ExportRejected("mlx_lm needs the name of the model in the file: give it")
    tensors: list[RawTensor] = []
    classes, scalars = [], []
    for index, (layer, arrays) in enumerate(zip(memory.layout, memory.layers, strict=True)):
        numbers = [memory.covered]
        if layer.bits is not None and layer.group_size is not None:
            classes.append(_QUANTIZED)
            numbers += [layer.group_size, layer.bits]
        else:
            classes.append(_FLOAT)
        for half in (0, 1):
            for name, tensor in arrays.items():
                part = f".{_PARTS.index(name)}" if layer.bits is not None else ""
                array = tensor.array[half][None]
                tensors.append(
                    (f"{index}.{half}{part}", tensor.dtype, array.shape, array.tobytes())
                )
        for place, number in enumerate(numbers, start=2):
            scalars.append(f"{index}.{place}")
            tensors.append((scalars[-1], "I32", (), np.asarray(number, "<i4").tobytes()))
    own = {**memory.metadata(), "fingerprint": memory.fingerprint}
    own |= {"model": memory.model, "tokenizer_config": "{}"}
    metadata = {f"0.{name}": value for name, value in own.items()}
    metadata |= {f"1.{index}": name for index, name in enumerate(classes)}
    metadata["2.0"] = ""
    for place, name in enumerate(scalars, start=1):
        metadata |= {f"2.{place}.0": name, f"2.{place}.1": "scalar"}
    return tensors, metadata


def metadata_of(fields: Fields) -> Fields:
    """What whoever saved the cache wrote beside it."""
    return fields.below("0.")


def decode(table: TensorTable, fields: Fields, target: Target) -> tuple[int, tuple[Arrays, ...]]:
    """Tokens with KV, and the layers, in float where the file has a KVCache, from the tensors in
    `table` and the metadata in `fields`, checked against `target`.

    Raises ImportRejected, ModelMismatch.
    """
    own = metadata_of(fields)
    target.check_model(own.text("model"), own.text("fingerprint"), field="model")
    if fields.text(f"1.{len(target.layout)}"):
        raise ModelMismatch("1", f"more layers than the loaded model's {len(target.layout)}")
    lengths = set()
    layers = []
    for index, layer in enumerate(target.layout):
        kind = fields.text(f"1.{index}")
        if kind not in (_QUANTIZED, _FLOAT):
            raise ImportRejected(
                f"1.{index}", f"a layer of class {kind!r}: only {_QUANTIZED} and {_FLOAT} are read"
            )
        tokens = _scalar(table, f"{index}.2")
        take = _quantized if kind == _QUANTIZED else _float
        layers.append(take(table, index, layer, tokens))
        lengths.add(tokens)
    if len(lengths) != 1:
        raise ImportRejected("offset", f"layers of different lengths: {sorted(lengths)}")
    return lengths.pop(), tuple(layers)


def _quantized(table: TensorTable, index: int, layer: LayerLayout, tokens: int) -> Arrays:
    found = (_scalar(table, f"{index}.4"), _scalar(table, f"{index}.3"))
    if found != (layer.bits, layer.group_size):
        raise ModelMismatch(
            f"layer {index}",
            f"{found[0]} bits in groups of {found[1]}; the loaded model keeps its KV in "
            f"{layer.bits} bits in groups of {layer.group_size}: load it with kv_bits={found[0]}, "
            f"group_size={found[1]}",
        )
    arrays = {}
    for place, name in enumerate(_PARTS):
        dtype, width = layer.widths()[name]
        halves = [
            _half(table, f"{index}.{half}.{place}", accepted(dtype), layer, width, tokens)
            for half in (0, 1)
        ]
        arrays[name] = Tensor(dtype, np.stack([half.widened(dtype).array for half in halves]))
    return arrays


def _float(table: TensorTable, index: int, layer: LayerLayout, tokens: int) -> Arrays:
    # float16 is rounded for a bfloat16 model; nothing wider than the model is.
    dtypes = tuple(dict.fromkeys((*accepted(layer.float_dtype), "F16")))
    keys, values = (
        _half(table, f"{index}.{half}", dtypes, layer, layer.head_dim, tokens) for half in (0, 1)
    )
    if keys.dtype != values.dtype:
        raise ImportRejected(f"{index}.1", f"values in {values.dtype}, keys in {keys.dtype}")
    return {"values": Tensor(keys.dtype, np.stack([keys.array, values.array]))}


def _half(
    table: TensorTable,
    name: str,
    dtypes: tuple[str, ...],
    layer: LayerLayout,
    width: int,
    tokens: int,
) -> Tensor:
    """The `tokens` that count of a buffer that may have room for more."""
    found = table.take(name, dtypes, (1, layer.kv_heads, None, width))
    array: NDArray[Any] = found.array[0]
    if array.shape[1] < tokens:
        raise ImportRejected(name, f"room for {array.shape[1]} tokens, the file counts {tokens}")
    return Tensor(found.dtype, array[:, :tokens])


def _scalar(table: TensorTable, name: str) -> int:
    value = int(table.take(name, ("I32",), ()).array)
    if value < 1:
        raise ImportRejected(name, f"{value} is no count above 0")
    return value
