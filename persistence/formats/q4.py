"""`q4-flat` and `q4-blocks`: packed 4-bit KV.
Pure: any thread.

Both hold MLX's affine codes, 8 in a uint32, with a scale and a bias for each group of the
head dimension. The sources write group size 64 and float16 ([write-up, Appendix A] for
q4-flat, [paper, Appendix A] for q4-blocks); ours keep the model's group size
(32 where 64 does not divide the head dimension) and the dtype that is stored, bfloat16 too.
Read, float16 and bfloat16 scales are widened for a model in float32, which is exact.

q4-flat, for layer L and X in (k, v):

    layer_{L}_{X}_weights            uint32  [1, tokens, kv_heads, head_dim / 8]
    layer_{L}_{X}_scales, _biases    float   [1, tokens, kv_heads, head_dim / group]

q4-blocks, for layer l, block b of 256 tokens and X in (key, value):

    cache.layers.{l}.{X}_cache.{b}.data              uint32  [kv_heads, tokens, head_dim / 8]
    cache.layers.{l}.{X}_cache.{b}.scales, .biases   float   [kv_heads, tokens, head_dim / group]

The paper's own shapes of q4-blocks contradict each other. Its data, (H, D/8, 256), packs
along the head dimension; its scales, (H, D, 4), are one for 64 tokens of a channel ("4 groups
per 256-token block"), which is a quantization along the tokens, and MLX has none. Here tokens
come before the width, as in MLX's arrays, and groups lie along the head dimension. H is the
number of KV heads, although the paper's metadata calls it num_attention_heads. Its
"quantization": "Q4_K_M" is kept as the format's label; it is not llama.cpp's scheme of that
name. The last block holds the tokens it has; one that is padded to 256 is read too.
"""

from __future__ import annotations

from collections.abc import Callable
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

__all__ = ["decode_blocks", "decode_flat", "encode_blocks", "encode_flat"]

BITS = 4
BLOCK_TOKENS = 256
LABEL = "Q4_K_M"

_FLAT = {"codes": "weights", "scales": "scales", "biases": "biases"}
_BLOCKS = {"codes": "data", "scales": "scales", "biases": "biases"}


def encode_flat(memory: PortableMemory) -> tuple[list[RawTensor], dict[str, str]]:
    """Tensors and metadata. Raises ExportRejected for a layer that is not in 4 bits."""
    _check_bits(memory.layout)
    tensors = []
    for index, arrays in enumerate(memory.layers):
        for half, letter in enumerate("kv"):
            for name, stored in _FLAT.items():
                array = arrays[name].array[half].transpose(1, 0, 2)[None]
                tensors.append(_raw(f"layer_{index}_{letter}_{stored}", arrays[name].dtype, array))
    return tensors, {
        **memory.metadata(),
        "prompt_text": memory.text,
        "fingerprint": memory.fingerprint,
    }


def decode_flat(
    table: TensorTable, fields: Fields, target: Target
) -> tuple[int, tuple[Arrays, ...]]:
    """Tokens with KV, and the layers, from the tensors in `table` and the metadata in `fields`,
    checked against `target`. Raises ImportRejected, ModelMismatch."""
    target.check_model(fields.text("model_id"), fields.text("fingerprint"), field="model_id")
    tokens = fields.number("total_tokens")

    def take(layer: LayerLayout, index: int, half: int, name: str) -> NDArray[Any]:
        stored = f"layer_{index}_{'kv'[half]}_{_FLAT[name]}"
        found = _take(table, stored, layer, name, (1, tokens, layer.kv_heads))
        return found.reshape(found.shape[1:]).transpose(1, 0, 2)

    return tokens, _layers(target, take)


def encode_blocks(memory: PortableMemory) -> tuple[list[RawTensor], dict[str, str]]:
    """Tensors and metadata. Raises ExportRejected for a layer that is not in 4 bits."""
    _check_bits(memory.layout)
    tensors = []
    for index, arrays in enumerate(memory.layers):
        for half, kind in enumerate(("key", "value")):
            for block, start in enumerate(range(0, memory.covered, BLOCK_TOKENS)):
                for name, stored in _BLOCKS.items():
                    array = arrays[name].array[half][:, start : start + BLOCK_TOKENS]
                    path = f"cache.layers.{index}.{kind}_cache.{block}.{stored}"
                    tensors.append(_raw(path, arrays[name].dtype, array))
    first = memory.layout[0]
    return tensors, {
        **memory.metadata(),
        "fingerprint": memory.fingerprint,
        "model_type": memory.model_type,
        "num_layers": str(len(memory.layout)),
        "num_attention_heads": str(first.kv_heads),
        "head_dim": str(first.head_dim),
        "num_blocks": str(-(-memory.covered // BLOCK_TOKENS)),
        "quantization": LABEL,
    }


def decode_blocks(
    table: TensorTable, fields: Fields, target: Target
) -> tuple[int, tuple[Arrays, ...]]:
    """Tokens with KV, and the layers, from the tensors in `table` and the metadata in `fields`,
    checked against `target`. Raises ImportRejected, ModelMismatch."""
    if fields.text("fingerprint") or fields.text("model_id"):
        target.check_model(fields.text("model_id"), fields.text("fingerprint"), field="model_id")
    else:
        # The paper's files name no more of a model than this.
        target.check("model_type", fields.text("model_type"), target.model_type)
    target.check("num_layers", fields.number("num_layers"), len(target.layout))
    target.check(
        "num_attention_heads", fields.number("num_attention_heads"), target.layout[0].kv_heads
    )
    target.check("head_dim", fields.number("head_dim"), target.layout[0].head_dim)
    if fields.text("quantization") != LABEL:
        raise ImportRejected("quantization", f"{fields.text('quantization')!r}, not {LABEL!r}")
    tokens, blocks = fields.number("total_tokens"), fields.number("num_blocks")
    if blocks != -(-tokens // BLOCK_TOKENS):
        raise ImportRejected("num_blocks", f"{blocks} blocks of 256 for {tokens} tokens")

    def take(layer: LayerLayout, index: int, half: int, name: str) -> NDArray[Any]:
        path = f"cache.layers.{index}.{('key', 'value')[half]}_cache"
        parts = []
        for block in range(blocks):
            stored = f"{path}.{block}.{_BLOCKS[name]}"
            found = _take(table, stored, layer, name, (layer.kv_heads, None))
            have = min(BLOCK_TOKENS, tokens - block * BLOCK_TOKENS)
            if found.shape[1] not in (have, BLOCK_TOKENS):
                raise ImportRejected(stored, f"it holds {found.shape[1]} tokens, not {have}")
            parts.append(found)
        return np.concatenate(parts, axis=1)[:, :tokens]

    return tokens, _layers(target, take)


def _layers(
    target: Target, take: Callable[[LayerLayout, int, int, str], NDArray[Any]]
) -> tuple[Arrays, ...]:
    """Every layer's arrays; `take(layer, index, 0 for keys or 1 for values, name)` gives
    [kv_heads, tokens, width]."""
    layers = []
    for index, layer in enumerate(target.layout):
        if layer.bits != BITS:
            raise ModelMismatch(
                f"layer {index}",
                f"the format has {BITS} bits, and the loaded model keeps this layer's KV in "
                f"{layer.bits or 'float'}: load it with kv_bits={BITS}",
            )
        layers.append(
            {
                name: Tensor(dtype, np.stack([take(layer, index, half, name) for half in (0, 1)]))
                for name, (dtype, _) in layer.widths().items()
            }
        )
    return tuple(layers)


def _take(
    table: TensorTable, stored: str, layer: LayerLayout, name: str, shape: tuple[int | None, ...]
) -> NDArray[Any]:
    dtype, width = layer.widths()[name]
    return table.take(stored, accepted(dtype), (*shape, width)).widened(dtype).array


def _check_bits(layout: tuple[LayerLayout, ...]) -> None:
    for index, layer in enumerate(layout):
        if layer.bits != BITS:
            raise ExportRejected(
                f"the format has {BITS} bits, and layer {index} is kept in "
                f"{layer.bits or 'float'}: use fp16-flat, mlx-lm or archive"
            )


def _raw(name: str, dtype: str, array: NDArray[Any]) -> RawTensor:
    return name, dtype, array.shape, array.tobytes()
