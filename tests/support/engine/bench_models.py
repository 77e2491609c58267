"""What other processes build for tests of benchmarks: peers of a model."""

from collections.abc import Callable

__all__ = ["echoing_peer", "failing_peer"]


def failing_peer(_model: object) -> Callable[[], None]:
    """No peer at all."""
    raise ValueError("no such peer")


def echoing_peer(model: object) -> Callable[..., tuple[object, ...]]:
    """Answers with the name of its model and with what it is asked."""
    return lambda *asked: (type(model).__name__, *asked)
