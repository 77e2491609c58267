"""Files as other programs write them: by hand, from the text that says how, with their own
libraries."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

__all__ = [
    "HEADS",
    "HEAD_DIM",
    "LAYERS",
    "fp16_flat",
    "q4_blocks",
    "q4_flat",
    "random_floats",
    "random_q4",
]

# The geometry of core.testing.tiny_llama.
LAYERS, HEADS, HEAD_DIM = 2, 2, 64

Q4 = dict[str, NDArray[Any]]


def random_q4(tokens: int, seed: int = 0) -> list[tuple[Q4, Q4]]:
    """Keys and values of each layer: data [H, T, D/8], scales and biases [H, T, 1]."""
    random = np.random.default_rng(seed)

    def half() -> Q4:
        return {
            "data": random.integers(0, 2**32, (HEADS, tokens, HEAD_DIM // 8), dtype=np.uint32),
            "scales": random.normal(size=(HEADS, tokens, 1)).astype(np.float16) / 8,
            "biases": random.normal(size=(HEADS, tokens, 1)).astype(np.float16),
        }

    return [(half(), half()) for _ in range(LAYERS)]


def random_floats(tokens: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Keys and values of each layer, float16 [H, D, T]."""
    random = np.random.default_rng(4)

    def half() -> NDArray[Any]:
        return random.normal(size=(HEADS, HEAD_DIM, tokens)).astype(np.float16)

    return [(half(), half()) for _ in range(LAYERS)]


def _text_of(metadata: dict[str, Any]) -> dict[str, str]:
    """safetensors metadata is strings; the rest of JSON goes in as JSON."""
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in metadata.items()
    }


def q4_flat(path: Path, layers: list[tuple[Q4, Q4]], tokens: list[int], **changes: Any) -> None:
    """[write-up, Appendix A]"""
    tensors = {}
    for number, halves in enumerate(layers):
        for letter, half in zip("kv", halves, strict=True):
            for name, array in half.items():
                stored = f"layer_{number}_{letter}_{'weights' if name == 'data' else name}"
                tensors[stored] = np.ascontiguousarray(array.swapaxes(0, 1)[np.newaxis])
    metadata = {
        "agent_id": "coding-assistant",
        "model_id": "tiny_llama",
        "total_tokens": layers[0][0]["data"].shape[1],
        "prompt_text": "You are a coding assistant...",
        "token_sequence": str(tokens),
    }
    save_file(tensors, path, _text_of(metadata | changes))


def q4_blocks(path: Path, layers: list[tuple[Q4, Q4]], *, pad: bool, **changes: Any) -> None:
    """[paper, Appendix A], with tokens before the width; `pad` fills the last block to 256."""
    tensors = {}
    total = layers[0][0]["data"].shape[1]
    for number, halves in enumerate(layers):
        for kind, half in zip(("key", "value"), halves, strict=True):
            for block in range(-(-total // 256)):
                for name, array in half.items():
                    part = array[:, 256 * block : 256 * (block + 1)]
                    if pad:
                        part = np.pad(part, [(0, 0), (0, 256 - part.shape[1]), (0, 0)])
                    stored = f"cache.layers.{number}.{kind}_cache.{block}.{name}"
                    tensors[stored] = np.ascontiguousarray(part)
    metadata = {
        "model_type": "llama",
        "num_layers": LAYERS,
        "num_attention_heads": HEADS,
        "head_dim": HEAD_DIM,
        "total_tokens": total,
        "num_blocks": -(-total // 256),
        "quantization": "Q4_K_M",
    }
    save_file(tensors, path, _text_of(metadata | changes))


def fp16_flat(path: Path, layers: list[tuple[NDArray[Any], NDArray[Any]]], **changes: Any) -> None:
    """[schema, Tensor Layout]: keys and values as [H, D, T]."""
    tensors = {}
    for number, (keys, values) in enumerate(layers):
        tensors[f"k_layer_{number}"] = keys
        tensors[f"v_layer_{number}"] = values
    tag = {
        "n_layers": LAYERS,
        "n_kv_heads": HEADS,
        "head_dim": HEAD_DIM,
        "block_tokens": 256,
    }
    metadata = {
        "agent_id": "agent_123",
        "model_id": "mlx-community/tiny_llama",
        "model_tag": tag | changes.pop("model_tag", {}),
        "total_tokens": layers[0][0].shape[2],
        "created_at": "2026-01-29T10:30:00Z",
        "version": "1.0",
    }
    save_file(tensors, path, _text_of(metadata | changes))
