"""`fp16-flat`: KV as float16, whatever precision the agent keeps it in.
Pure: any thread.

For layer i of n_layers, with the tokens last:

    k_layer_{i}, v_layer_{i}    float16 [kv_heads, head_dim, tokens]

Metadata: agent_id, model_id, model_tag {n_layers, n_kv_heads, head_dim, block_tokens},
total_tokens, created_at, version; ours adds token_sequence, which [schema, Metadata Fields] has
no place for. One geometry for all layers is the format's limit. Exported, quantized KV is
dequantized in float32 (scale x code + bias) and rounded to float16; imported, it is quantized
again, so a round trip is close and not exact. It fits every precision of KV, so it carries no
fingerprint of ours: the model is told by the check of [schema, Compatibility Validation], and by
its name.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvactors.core.cache.segment import RawTensor
from kvactors.persistence.errors import ExportRejected, ImportRejected
from kvactors.persistence.formats.fields import Fields, TensorTable
from kvactors.persistence.formats.neutral import (
    Arrays,
    LayerLayout,
    PortableMemory,
    Target,
    Tensor,
    to_float32,
)

__all__ = ["decode", "dequantize", "encode"]

VERSION = "1.0"
BLOCK_TOKENS = 256


def encode(memory: PortableMemory) -> tuple[list[RawTensor], dict[str, str]]:
    """Tensors and metadata. Raises ExportRejected if float16 cannot hold the KV."""
    first = memory.layout[0]
    tensors = []
    for index, (layer, arrays) in enumerate(zip(memory.layout, memory.layers, strict=True)):
        if (layer.kv_heads, layer.head_dim) != (first.kv_heads, first.head_dim):
            raise ExportRejected(
                f"fp16-flat has one geometry for all layers, and layer {index} differs from layer "
                "0: use mlx-lm or archive"
            )
        # What is too large becomes infinite and is refused by the next line, not warned of.
        with np.errstate(over="ignore"):
            halves = dequantize(layer, arrays).astype("<f2")
        if not np.isfinite(halves).all():
            raise ExportRejected(
                f"KV of layer {index} exceeds what float16 can hold: use mlx-lm or archive"
            )
        for letter, half in zip("kv", halves, strict=True):
            array = half.transpose(0, 2, 1)
            tensors.append((f"{letter}_layer_{index}", "F16", array.shape, array.tobytes()))
    return tensors, {
        **memory.metadata(),
        "model_tag": json.dumps(_tag(memory.layout)),
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": VERSION,
    }


def decode(table: TensorTable, fields: Fields, target: Target) -> tuple[int, tuple[Arrays, ...]]:
    """Tokens with KV, and the layers in float, from the tensors in `table` and the metadata in
    `fields`, checked against `target`. Raises ImportRejected, ModelMismatch."""
    if fields.text("version") != VERSION:
        raise ImportRejected("version", f"{fields.text('version')!r}, this program reads {VERSION}")
    target.check_model(fields.text("model_id"), "", field="model_id")
    tag = fields.mapping("model_tag")
    for name, expected in _tag(target.layout).items():
        target.check(f"model_tag.{name}", tag.get(name), expected)
    tokens = fields.number("total_tokens")
    layers = []
    for index, layer in enumerate(target.layout):
        form = (layer.kv_heads, layer.head_dim, tokens)
        halves = [
            table.take(f"{letter}_layer_{index}", ("F16",), form).array.transpose(0, 2, 1)
            for letter in "kv"
        ]
        layers.append({"values": Tensor("F16", np.stack(halves))})
    return tokens, tuple(layers)


def _tag(layout: tuple[LayerLayout, ...]) -> dict[str, int]:
    first = layout[0]
    return {
        "n_layers": len(layout),
        "n_kv_heads": first.kv_heads,
        "head_dim": first.head_dim,
        "block_tokens": BLOCK_TOKENS,
    }


def dequantize(layer: LayerLayout, arrays: Arrays) -> NDArray[Any]:
    """A layer's numbers in float32: [2, kv_heads, tokens, head_dim]."""
    if layer.bits is None or layer.group_size is None:
        return to_float32(arrays["values"])
    shifts = np.arange(0, 32, layer.bits, dtype="<u4")
    codes = (arrays["codes"].array[..., None] >> shifts) & (2**layer.bits - 1)
    scales, biases = to_float32(arrays["scales"]), to_float32(arrays["biases"])
    grouped = codes.astype("<f4").reshape(*scales.shape, layer.group_size)
    whole: NDArray[Any] = grouped * scales[..., None] + biases[..., None]
    return whole.reshape(*scales.shape[:-1], layer.head_dim)
