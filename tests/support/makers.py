"""What fixtures that make something give, and what many tests give these: models and prompts."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvactors.actors import AgentSystem
from kvactors.core.engine.engine import Engine
from kvactors.core.model.load import LoadedModel, load_model
from kvactors.core.model.options import ModelOptions

__all__ = [
    "PADDED_SUMS",
    "LoadFamily",
    "LoadGrid",
    "MakeEngine",
    "OpenSystem",
    "Ticks",
    "load_as_meant",
    "prompt_of",
    "prompts_of",
]

LoadFamily = Callable[..., LoadedModel]
LoadGrid = Callable[..., LoadedModel]
MakeEngine = Callable[..., Engine]
OpenSystem = Callable[..., AgentSystem]

# Families that choose keys or ask for one position: never in a batch.
ROW_BY_ROW = frozenset({"deepseek_v32", "gpt_bigcode", "llama4", "minimax_m3_vl"})
# Whose sums depend on how far a batch is padded, and how wide a chunk is: in none where results
# must not.
PADDED_SUMS = frozenset({"deepseek_v3", "gemma2", "longcat_flash_ngram"})


class Ticks:
    """A clock of which every look takes a hundredth of a second: what an engine plans does not
    depend on the machine then."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def __call__(self) -> float:
        self._seconds += 0.01
        return self._seconds


def load_as_meant(family: str, source: Callable[[], Any], options: ModelOptions) -> LoadedModel:
    """A model of a `family` from a `source` with these `options`, which runs in a batch if it is
    meant to. A bug that only a batch has would else be hidden by the probe at load, which falls
    back to row by row."""
    loaded = load_model(source, options)
    alone = family in ROW_BY_ROW or (family in PADDED_SUMS and options.attention == "packed")
    assert loaded.spec.batched is not alone, f"{family} runs in a batch: {loaded.spec.batched}"
    return loaded


def prompts_of(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Random prompts of so many tokens each."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 128, length).tolist() for length in lengths]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """A random prompt."""
    return prompts_of([length], seed)[0]
