"""What the default model gives each token, by mlx-lm and NumPy: the oracle of log-probabilities."""

from functools import lru_cache
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest

from kvactors.actors.frontends.server.web.serve import Server
from kvactors.core.model.options import DEFAULT_MODEL

__all__ = ["check_place", "logprobs_of", "tokens_of"]


def tokens_of(server: Server, text: str) -> list[int]:
    """As a text by itself is read."""
    return server.service.system.chat.encode_whole(text)


@lru_cache
def _model() -> Any:
    model: Any = mlx_lm.load(str(DEFAULT_MODEL))[0]
    # As ours computes on a CPU.
    model.set_dtype(mx.float32)
    return model


def logprobs_of(tokens: list[int]) -> np.ndarray[Any, Any]:
    """mlx-lm's log-probabilities [tokens, vocab] behind each of these, by NumPy in float64."""
    logits = np.array(_model()(mx.array([tokens]))[0].astype(mx.float32), dtype=np.float64)
    own: np.ndarray[Any, Any] = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    return own


def check_place(own: Any, token: int, logprob: float, top: list[float]) -> None:
    """That these are what the model says of a token at a place, whose log-probabilities are
    `own` [vocab]."""
    assert logprob == pytest.approx(own[token], abs=1e-4)
    assert top == pytest.approx(np.sort(own)[::-1][: len(top)], abs=1e-4)
