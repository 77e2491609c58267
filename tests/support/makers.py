"""What fixtures that make something give, and what many tests give these: models and prompts."""

from collections.abc import Callable, Sequence

import numpy as np

from kvactors.actors import AgentSystem
from kvactors.core.engine.engine import Engine
from kvactors.core.model.load import LoadedModel

__all__ = [
    "LoadFamily",
    "LoadGrid",
    "MakeEngine",
    "OpenSystem",
    "prompt_of",
    "prompts_of",
]

LoadFamily = Callable[..., LoadedModel]
LoadGrid = Callable[..., LoadedModel]
MakeEngine = Callable[..., Engine]
OpenSystem = Callable[..., AgentSystem]


def prompts_of(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Random prompts of so many tokens each."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 128, length).tolist() for length in lengths]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """A random prompt."""
    return prompts_of([length], seed)[0]
