"""What other processes build for tests of benchmarks: a model, and peers of it."""

from collections.abc import Callable
from typing import Any

from kvactors.core.testing.models import grid

__all__ = ["echoing_peer", "endless_grid", "failing_peer"]


def endless_grid() -> tuple[Any, Any]:
    """The grid model, which never ends a turn by itself."""
    model, tokenizer = grid()
    tokenizer.eos_token_ids = set()
    return model, tokenizer


def failing_peer(_model: object) -> Callable[[], None]:
    """No peer at all."""
    raise ValueError("no such peer")


def echoing_peer(model: object) -> Callable[..., tuple[object, ...]]:
    """Answers with the name of its model and with what it is asked."""
    return lambda *asked: (type(model).__name__, *asked)
