"""A llama in float64 NumPy, over the very codes that a cache holds. It shares no code with the
product: neither attention nor products nor the form of codes."""

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Codes", "NumpyLlama", "Seen"]

_EPS = 1e-5


@dataclass(frozen=True)
class Codes:
    """What one row holds in one layer, of keys and of values: affine 4-bit `codes`
    [2, kv_heads, tokens, dim / 8] of eight in a word, the lowest first; `scales` and `biases`
    [2, kv_heads, tokens, dim / group]."""

    codes: np.ndarray
    scales: np.ndarray
    biases: np.ndarray

    def numbers(self) -> np.ndarray:
        """[2, kv_heads, tokens, dim]."""
        fours = (self.codes[..., None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 15
        fours = fours.reshape(*self.scales.shape, -1).astype(np.float64)
        said: np.ndarray = fours * self.scales[..., None] + self.biases[..., None]
        return said.reshape(*self.codes.shape[:-1], -1)


@dataclass(frozen=True)
class Seen:
    """`logits` [tokens, vocab]; by how many steps of its codes a key or value is at most off."""

    logits: np.ndarray
    worst_code: float


class NumpyLlama:
    """The weights of mlx-lm's llama `model`, in float64."""

    def __init__(self, model: Any) -> None:
        args = model.args
        self._heads, self._kv_heads = args.num_attention_heads, args.num_key_value_heads
        self._dim, self._base = args.head_dim, args.rope_theta
        self._embedding = _floats(model.model.embed_tokens)
        self._norm, self._head = _floats(model.model.norm), _floats(model.lm_head)
        self._layers = [
            {
                "before": _floats(layer.input_layernorm),
                "after": _floats(layer.post_attention_layernorm),
                **{name: _floats(layer.self_attn[f"{name}_proj"]) for name in "qkvo"},
                **{name: _floats(layer.mlp[f"{name}_proj"]) for name in ("gate", "up", "down")},
            }
            for layer in model.model.layers
        ]

    def run(self, tokens: list[int], held: list[Codes]) -> Seen:
        """All `tokens` of a row at once, each over what the row has `held` in each layer of it and
        of those before it."""
        x, worst = self._embedding[tokens], 0.0
        for weights, codes in zip(self._layers, held, strict=True):
            h = _normed(x, weights["before"])
            q, k, v = (self._apart(h @ weights[name].T) for name in "qkv")
            q, k = self._turned(q), self._turned(k)
            said = codes.numbers()
            step = np.abs(codes.scales).repeat(self._dim // codes.scales.shape[-1], axis=-1)
            worst = max(worst, float((np.abs(said - np.stack([k, v])) / step).max()))
            x = x + self._attended(q, *said) @ weights["o"].T
            h = _normed(x, weights["after"])
            gate = h @ weights["gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ weights["up"].T)) @ weights["down"].T
        return Seen(_normed(x, self._norm) @ self._head.T, worst)

    def _apart(self, rows: np.ndarray) -> np.ndarray:
        """[tokens, heads * dim] as [heads, tokens, dim]."""
        return rows.reshape(len(rows), -1, self._dim).swapaxes(0, 1)

    def _turned(self, rows: np.ndarray) -> np.ndarray:
        """Rotary positions: the first half of each head's numbers with the second. Behind a
        thousand tokens the model's own angles, in float32, are 1e-4 away from these."""
        half = self._dim // 2
        angles = np.arange(rows.shape[1])[:, None] * self._base ** (-np.arange(half) / half)
        cos, sin = np.cos(angles), np.sin(angles)
        one, two = rows[..., :half], rows[..., half:]
        return np.concatenate([one * cos - two * sin, one * sin + two * cos], axis=-1)

    def _attended(self, queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        tokens = queries.shape[1]
        hidden = np.triu(np.ones((tokens, tokens), bool), 1)
        out = []
        for head, asked in enumerate(queries):
            kv_head = head * self._kv_heads // self._heads
            scores = asked @ keys[kv_head].T / np.sqrt(self._dim)
            scores[hidden] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out.append(weights / weights.sum(-1, keepdims=True) @ values[kv_head])
        return np.concatenate(out, axis=-1)


def _floats(module: Any) -> np.ndarray:
    return np.array(module.weight).astype(np.float64)


def _normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    normed: np.ndarray = x / np.sqrt((x * x).mean(-1, keepdims=True) + _EPS) * weight
    return normed
