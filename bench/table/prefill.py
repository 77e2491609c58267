"""Regimes of prefill, and of a memory that is cold: seconds to the first token."""

from collections.abc import Callable, Iterator
from typing import Any

from kvactors.bench import peers
from kvactors.bench.setup import Setup, answer
from kvactors.bench.table.regime import Regime

__all__ = ["REGIMES", "first_token"]

Pairs = Iterator[tuple[float, float]]


def first_token(system: Any, prompt: list[int]) -> float:
    """Time to the first token of an agent that was never here; it is forgotten again."""
    reply = answer(system.spawn("reader"), prompt)
    assert reply.cache == "cold"
    system.forget("reader")
    seconds: float = reply.timing.first_token
    return seconds


def _against(setup: Setup, empty: Callable[[], list[Any]]) -> Pairs:
    prompt = setup.prompt(setup.scale.tokens(4096))
    with setup.system() as system:
        first_token(system, prompt[:64])
        while True:
            ours = first_token(system, prompt)
            yield ours, peers.timed_prefill(setup.model, prompt, empty())


def against_float(setup: Setup) -> Pairs:
    """Time to the first token of a prompt of 4,096 tokens through AgentSystem at 4 bits, against
    mlx-lm's model over its float cache in a bare loop of the same chunks."""
    return _against(setup, lambda: peers.empty_float(setup.model))


def against_quantized(setup: Setup) -> Pairs:
    """The same against mlx-lm's QuantizedKVCache, 4 bits in groups of 64, same chunks."""
    return _against(setup, lambda: peers.empty_quantized(setup.model))


REGIMES = (
    Regime("prefill-4k", "mlx-lm, float cache, same chunks", 1.05, against_float),
    Regime("prefill-4k-q4", "mlx-lm, QuantizedKVCache, same chunks", 0.30, against_quantized),
)
