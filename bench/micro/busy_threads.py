"""A decode step while threads compute in Python beside it."""

import threading

from kvactors.actors import AgentSystem, Sampling
from kvactors.bench.random_model import random_llama

__all__ = ["ROWS", "decode_step"]

ROWS = 4


def decode_step(busy: int, tokens: int) -> float:
    """Milliseconds of a decode step while so many threads compute in Python."""
    with AgentSystem(random_llama, store=False) as system:
        agents = [system.spawn(f"row {row}") for row in range(ROWS)]
        for agent in agents:
            agent.ask([1], sampling=Sampling(max_tokens=8)).get()
        done = threading.Event()
        threads = [threading.Thread(target=_spin, args=(done,)) for _ in range(busy)]
        for thread in threads:
            thread.start()
        futures = [agent.ask([2], sampling=Sampling(max_tokens=tokens)) for agent in agents]
        timings = [future.get().timing for future in futures]
        done.set()
        for thread in threads:
            thread.join()
    first = max(timing.first_token for timing in timings)
    last = max(timing.total for timing in timings)
    return float(last - first) / (tokens - 1) * 1000


def _spin(done: threading.Event) -> None:
    value = 0
    while not done.is_set():
        for number in range(1000):
            value = (value * 31 + number) % 1_000_003
