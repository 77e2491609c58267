"""A decode step while threads compute in Python beside it."""

from kvactors.actors import AgentSystem, Sampling
from kvactors.bench.busy_threads import busy_threads
from kvactors.bench.random_model import random_llama

__all__ = ["ROWS", "decode_step"]

ROWS = 4


def decode_step(busy: int, tokens: int) -> float:
    """Milliseconds of a decode step while so many threads compute in Python."""
    with AgentSystem(random_llama, store=False) as system:
        agents = [system.spawn(f"row {row}") for row in range(ROWS)]
        for agent in agents:
            agent.ask([1], sampling=Sampling(max_tokens=8)).get()
        with busy_threads(busy):
            futures = [agent.ask([2], sampling=Sampling(max_tokens=tokens)) for agent in agents]
            timings = [future.get().timing for future in futures]
    first = max(timing.first_token for timing in timings)
    last = max(timing.total for timing in timings)
    return float(last - first) / (tokens - 1) * 1000
