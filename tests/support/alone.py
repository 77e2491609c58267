"""What a text's last token has for logits where nothing else is remembered: in an arena with one
row. And sessions of the same model."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from kvactors.core.arena.arena import Arena
from kvactors.core.cache.family.config import CacheConfig, ModelFacts
from kvactors.core.cache.family.faces import SeqCache
from kvactors.core.engine.runner import new_arena
from kvactors.core.model.load import LoadedModel

__all__ = ["FACTS", "PROMPT", "Alone", "config", "fed", "open_as"]

FACTS = ModelFacts(n_layers=2, n_kv_heads=2, head_dim=64)
PROMPT = [5, 9, 3, 17, 4, 8, 2]


def config(bits: int | None = 4, capacity: int = 200) -> CacheConfig:
    return CacheConfig(FACTS, capacity, bits)


class Alone:
    """Logits of the last of some tokens, fed to an arena row that holds nothing else."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.bits = loaded.spec.layers[0].bits
        self.known: dict[tuple[int, ...], mx.array] = {}

    def __call__(self, tokens: Sequence[int]) -> mx.array:
        key = tuple(tokens)
        if key not in self.known:
            self.known[key] = self.filled(tokens)[1]
        return self.known[key]

    def filled(self, tokens: Sequence[int]) -> tuple[Arena, mx.array]:
        arena = new_arena(self.loaded)
        arena.add_row(0, len(tokens))
        return arena, arena.forward(self.loaded.model, mx.array([list(tokens)]))[0, -1]

    def agrees(self, logits: mx.array, texts: Sequence[Sequence[int]]) -> None:
        assert logits.shape[0] == len(texts)
        for index, text in enumerate(texts):
            assert mx.array_equal(logits[index], self(text)), f"token {index}, behind {text[:-1]}"


def open_as(alone: Alone, maker: Any, capacity: int = 200) -> Any:
    made = maker(alone.loaded.model, config(alone.bits, capacity), attention="packed")
    assert made.row.arena.spec.layers == alone.loaded.spec.layers
    return made


def fed(session: Any, tokens: Sequence[int], positions: Sequence[int]) -> mx.array:
    if isinstance(session.cache, SeqCache):
        session.cache.begin_step([3] * len(tokens))
    logits: mx.array = session.step(tokens, positions)
    mx.eval(logits)
    return logits
