"""Shape and first weights of the default model: a llama that starts as an induction circuit.

From ordinary random weights so small a model learns almost no recall in an hour. Here head h
of layer 0 looks back h + 1 tokens and copies that token into its own part of the residual
stream; layer 1 matches the last three tokens against what preceded every earlier token and
copies what came next (Olsson et al. 2022, "In-context Learning and Induction Heads"). All of
it stays trainable.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CONFIG",
    "DRAFT",
    "FIRST",
    "GROWN",
    "PROBES",
    "Shape",
    "first_weights",
    "grown",
    "shape_of",
]

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a model is: its heads are together as wide as its stream."""

    layers: int
    feed_forward: int
    heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """Of the residual stream."""
        return self.heads * self.head_dim

    @property
    def config(self) -> dict[str, Any]:
        """As mlx-lm wants it."""
        return {
            **CONFIG,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "intermediate_size": self.feed_forward,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "head_dim": self.head_dim,
        }


# The default model at first, and once grown; and the model that drafts for it: the two layers of
# the circuit, whose steps are to cost little.
FIRST, GROWN = Shape(3, 512, 4, 64), Shape(4, 448, 4, 64)
DRAFT = Shape(2, 224, 5, 32)
# Linear readers that exist in training only: was this pair of tokens here before, and was
# what is asked told? Without them refusal stayed at chance; with them the layers in the
# middle are told directly what the last one needs.
PROBES = ("seen", "told")
THETA = 1e8
# Strength of the look-back and the share of frequencies that carry it.
LOOK_BACK, LOOK_BACK_SHARE = 7.0, 0.32
# Matching uses only rows that barely turn over a context, so that distance does not matter.
SLOW = 1 / 500
MATCH_SCALE = 0.5
MATCHED_TOKENS = 3
COPY = 0.1

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "rms_norm_eps": 1e-5,
    "vocab_size": 1792,
    "max_position_embeddings": 32768,
    "rope_theta": THETA,
    "attention_bias": True,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "torch_dtype": "float16",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def first_weights(seed: int, shape: Shape = FIRST) -> dict[str, Array]:
    """All weights of a `shape` by their mlx-lm names, float32; the same for the same seed."""
    rng = np.random.default_rng(seed)
    weights = {
        "model.embed_tokens.weight": _normal(rng, (CONFIG["vocab_size"], shape.width), 0.05),
        "model.norm.weight": np.ones(shape.width, np.float32),
    }
    for layer in range(shape.layers):
        for name, value in _plain_layer(rng, shape).items():
            weights[f"model.layers.{layer}.{name}"] = value
    look_back = _look_back(rng, shape)
    _set(weights, 0, look_back, keep=0.05)
    _set(weights, 1, _match(rng, look_back, shape), keep=0.1)
    return weights


def shape_of(weights: Mapping[str, Any]) -> Shape:
    """The shape of weights by their mlx-lm names: the draft model's heads are the smaller ones."""
    layers = sum(name.endswith("gate_proj.weight") for name in weights)
    feed_forward, width = weights["model.layers.0.mlp.gate_proj.weight"].shape
    head_dim = (DRAFT if width == DRAFT.width else GROWN).head_dim
    return Shape(layers, int(feed_forward), int(width) // head_dim, head_dim)


def grown(weights: dict[str, Array], seed: int) -> dict[str, Array]:
    """The same model with a fresh last layer that changes almost nothing yet.

    To stay within 6 MB the feed-forward parts give up their weakest neurons.
    """
    rng = np.random.default_rng((seed, 1))
    width = GROWN.feed_forward
    larger = dict(weights)
    for layer in range(GROWN.layers - 1):
        name = f"model.layers.{layer}.mlp."
        gate, up, down = (weights[f"{name}{part}_proj.weight"] for part in ("gate", "up", "down"))
        strength = np.linalg.norm(gate, axis=1) * np.linalg.norm(up, axis=1)
        strength *= np.linalg.norm(down, axis=0)
        kept = np.sort(np.argsort(strength)[-width:])
        larger[name + "gate_proj.weight"] = gate[kept]
        larger[name + "up_proj.weight"] = up[kept]
        larger[name + "down_proj.weight"] = down[:, kept]
    for part, value in _plain_layer(rng, GROWN).items():
        larger[f"model.layers.{GROWN.layers - 1}.{part}"] = value
    for probe in PROBES:
        larger[f"probe.{probe}.weight"] = np.zeros(GROWN.width, np.float32)
        larger[f"probe.{probe}.bias"] = np.zeros(1, np.float32)
    return larger


def _set(weights: dict[str, Array], layer: int, circuit: dict[str, Array], *, keep: float) -> None:
    """Replace values and outputs; add queries and keys to `keep` of the random ones."""
    for name, value in circuit.items():
        full = f"model.layers.{layer}.self_attn.{name}"
        if name in ("q_proj.weight", "k_proj.weight"):
            value = weights[full] * keep + value
        weights[full] = value.astype(np.float32)


def _normal(rng: np.random.Generator, shape: tuple[int, ...], deviation: float) -> Array:
    return rng.normal(0.0, deviation, shape).astype(np.float32)


def _orthonormal(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """`rows` orthonormal rows of length `columns`."""
    full: Array = np.linalg.qr(rng.normal(size=(columns, columns)))[0].astype(np.float32)
    return full[:rows]


def _plain_layer(rng: np.random.Generator, shape: Shape) -> dict[str, Array]:
    width, feed_forward = shape.width, shape.feed_forward
    deviation = 0.6 / width**0.5
    layer = {
        "input_layernorm.weight": np.ones(width, np.float32),
        "post_attention_layernorm.weight": np.ones(width, np.float32),
        "self_attn.o_proj.weight": _normal(rng, (width, width), 0.01),
        "self_attn.o_proj.bias": np.zeros(width, np.float32),
        "mlp.gate_proj.weight": _normal(rng, (feed_forward, width), deviation),
        "mlp.up_proj.weight": _normal(rng, (feed_forward, width), deviation),
        "mlp.down_proj.weight": _normal(rng, (width, feed_forward), 0.01),
    }
    for name in "qkv":
        layer[f"self_attn.{name}_proj.weight"] = _normal(rng, (width, width), deviation)
        layer[f"self_attn.{name}_proj.bias"] = np.zeros(width, np.float32)
    return layer


def _frequencies(shape: Shape) -> NDArray[np.float64]:
    half = shape.head_dim // 2
    frequencies: NDArray[np.float64] = THETA ** (-np.arange(half) / half)
    return frequencies


def _look_back(rng: np.random.Generator, shape: Shape) -> dict[str, Array]:
    """Layer 0. With key (1, 0) and query (cos fd, -sin fd) in the plane of frequency f, the
    rotated score is cos f(distance - d): the head attends to d tokens back.
    """
    half, width = shape.head_dim // 2, shape.width
    rows = int(LOOK_BACK_SHARE * half)
    fast = _frequencies(shape)[:rows]
    queries = np.zeros((shape.heads, shape.head_dim), np.float32)
    keys = np.zeros_like(queries)
    for head in range(shape.heads):
        turn = fast * (head + 1)
        queries[head, :rows] = LOOK_BACK * np.cos(turn)
        queries[head, half : half + rows] = -LOOK_BACK * np.sin(turn)
        keys[head, :rows] = LOOK_BACK
    values = [_orthonormal(rng, shape.head_dim, width) for _ in range(shape.heads)]
    none = np.zeros((width, width), np.float32)
    return {
        "q_proj.weight": none,
        "k_proj.weight": none,
        "q_proj.bias": queries.reshape(-1),
        "k_proj.bias": keys.reshape(-1),
        "v_proj.weight": np.concatenate(values),
        # Disjoint columns: each head writes to its own part of the stream.
        "o_proj.weight": COPY * _orthonormal(rng, width, width),
    }


def _match(rng: np.random.Generator, look_back: dict[str, Array], shape: Shape) -> dict[str, Array]:
    """Layer 1. `back[d]` reads the token d before from what layer 0 wrote; a position is
    matched where its tokens 1, 2, 3 back are the query's tokens 0, 1, 2 back.
    """
    width, heads, head_dim = shape.width, shape.heads, shape.head_dim
    outputs = look_back["o_proj.weight"].reshape(width, heads, head_dim) / COPY
    values = look_back["v_proj.weight"].reshape(heads, head_dim, width)
    back = [np.eye(width, dtype=np.float32)]
    back += [values[head].T @ outputs[:, head].T for head in range(heads)]
    slow = np.flatnonzero(_frequencies(shape) < SLOW)
    rows = np.concatenate([slow, slow + head_dim // 2])
    queries = np.zeros((heads, head_dim, width), np.float32)
    keys = np.zeros_like(queries)
    for head in range(heads):
        for token in range(MATCHED_TOKENS):
            code = _orthonormal(rng, len(rows), width) * (width / len(rows)) ** 0.5 * MATCH_SCALE
            queries[head, rows] += code @ back[token]
            keys[head, rows] += code @ back[token + 1]
    copied = _orthonormal(rng, width, width)
    return {
        "q_proj.weight": queries.reshape(-1, width),
        "k_proj.weight": keys.reshape(-1, width),
        "v_proj.weight": copied,
        "o_proj.weight": COPY * copied.T,
    }
