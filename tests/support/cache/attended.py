"""What tokens attend to, told by their names: numbers of each, and attention over sets of them."""

from collections.abc import Sequence

import numpy as np

__all__ = ["DIM", "HEADS", "KV_HEADS", "SCALE", "attended", "numbers"]

HEADS, KV_HEADS, DIM, SCALE = 4, 2, 32, 0.2


def numbers(what: str, names: Sequence[int], layer: int = 0) -> np.ndarray:
    """Queries, keys or values ("q", "k", "v") of tokens of these names: [1, heads, T, DIM]."""
    heads = HEADS if what == "q" else KV_HEADS
    draws = [np.random.default_rng((ord(what), layer, name)) for name in names]
    return np.stack([draw.standard_normal((heads, DIM)) for draw in draws], axis=1)[None]


def attended(
    queries: np.ndarray,
    keys: dict[int, np.ndarray],
    values: dict[int, np.ndarray],
    sees: list[set[int]],
) -> np.ndarray:
    """[1, heads, T, DIM] of queries that see those names, whose `keys` and `values` are given, each
    [heads of keys, DIM]."""
    out = np.zeros(queries.shape)
    for token, names in enumerate(sees):
        for head in range(HEADS):
            kv = head * KV_HEADS // HEADS
            scores = {n: float(queries[0, head, token] @ keys[n][kv]) * SCALE for n in names}
            total = sum(np.exp(score) for score in scores.values())
            weighed = [np.exp(score) * values[n][kv] for n, score in scores.items()]
            out[0, head, token] = np.sum(weighed, axis=0) / total
    return out
