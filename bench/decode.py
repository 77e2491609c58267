"""Decode tokens/s of a batch of agents against mlx-lm's own BatchGenerator.

    python -m kvactors.bench.decode [--quick] [--ragged] [--context 512]

Regime: every sequence has its context cached, all decode at once, none arrives or leaves.
kvactors is measured through AgentSystem, actors included, with 4-bit KV; mlx-lm with its
float cache, since its generator cannot quantize. Runs alternate; the ratio is the median of
the ratios of neighbouring runs, so that a machine that slows down slows both.
"""

import argparse
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from kvactors.actors import AgentSystem, Sampling
from kvactors.bench.random_model import DESCRIPTION, VOCABULARY, random_llama
from kvactors.bench.report import print_json, print_table
from kvactors.core import blas

__all__ = ["main"]

BATCHES = (1, 2, 4, 8, 16)
# More than any run decodes: no sequence leaves mlx-lm's batch by itself.
ENDLESS = 1_000_000


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few short runs")
    parser.add_argument("--context", type=int, help="cached tokens of a sequence [512]")
    parser.add_argument("--tokens", type=int, help="tokens decoded in a run [64]")
    parser.add_argument("--runs", type=int, help="runs of each kind [7]")
    parser.add_argument("--ragged", action="store_true", help="contexts from 1/8 to all of it")
    options = parser.parse_args(arguments)
    context = options.context or (64 if options.quick else 512)
    tokens = options.tokens or (8 if options.quick else 64)
    runs = options.runs or (2 if options.quick else 7)
    batches = BATCHES[:2] if options.quick else BATCHES

    blas.preload()
    rival = _MlxLm()
    rows = []
    with AgentSystem(random_llama, store=False, max_batch=max(batches), kv_bits=4) as system:
        for batch in batches:
            lengths = _lengths(batch, context, ragged=options.ragged)
            ours, theirs = [], []
            for run in range(runs):
                prompts = _prompts(lengths, seed=run)
                ours.append(_ours(system, prompts, tokens))
                theirs.append(rival.measure(prompts, tokens))
            ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
            rows.append((batch, median(ours), median(theirs), ratio))

    kind = "ragged" if options.ragged else "uniform"
    print_table(
        f"Decode, {kind} contexts of up to {context} tokens, {runs} runs.\n{DESCRIPTION}.",
        ("batch", "kvactors Q4 tokens/s", "mlx-lm float tokens/s", "ratio"),
        rows,
    )
    names = ("batch", "tokens_per_s", "mlx_lm_tokens_per_s", "ratio")
    print_json(
        "decode",
        contexts=kind,
        context=context,
        decoded=tokens,
        runs=runs,
        rows=[dict(zip(names, row, strict=True)) for row in rows],
    )


def _lengths(batch: int, context: int, *, ragged: bool) -> list[int]:
    if not ragged:
        return [context] * batch
    return [int(length) for length in np.linspace(context / 8, context, batch)]


def _prompts(lengths: Sequence[int], seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, VOCABULARY, length).tolist() for length in lengths]


def _ours(system: AgentSystem, prompts: Sequence[list[int]], tokens: int) -> float:
    """Tokens per second between the first token of the first and the last of the last."""
    agents = [system.spawn(f"agent {index}") for index in range(len(prompts))]
    one, many = Sampling(max_tokens=1), Sampling(max_tokens=tokens)
    for future in [a.ask(p[:-1], sampling=one) for a, p in zip(agents, prompts, strict=True)]:
        future.get()
    # The contexts are hot now: this turn only decodes.
    replies = [agent.ask([1], sampling=many) for agent in agents]
    timings = [future.get().timing for future in replies]
    for agent in agents:
        system.forget(agent.agent_id)
    begin = min(timing.first_token for timing in timings)
    spent: float = max(timing.total for timing in timings) - begin
    return len(prompts) * (tokens - 1) / spent


class _MlxLm:
    """mlx-lm's generator over the same weights, on this thread."""

    def __init__(self) -> None:
        self._model, _ = random_llama()

    def measure(self, prompts: Sequence[list[int]], tokens: int) -> float:
        """Tokens per second, counted from the first token that every sequence has."""
        from mlx_lm.generate import BatchGenerator

        generator: Any = BatchGenerator(self._model, prefill_batch_size=len(prompts))
        generator.insert([list(prompt) for prompt in prompts], [ENDLESS] * len(prompts))
        while len(generator.next()[1]) < len(prompts):
            pass
        begin, decoded = time.perf_counter(), 0
        while decoded < len(prompts) * (tokens - 1):
            decoded += len(generator.next()[1])
        return decoded / (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
