"""Regimes of a reader: what the gaps between an agent's tokens are while others prefill or save."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from kvactors.actors import Agent
from kvactors.bench.disk import raw_write
from kvactors.bench.regime import NOTHING_DECODED, Regime, Side, Sides
from kvactors.bench.setup import ENDLESS, FIRST, Setup, answer
from kvactors.bench.turns import hot_agents, step

__all__ = ["REGIMES"]

LONG = 16_384
# So many gaps at least, for a 99th percentile that is not the worst one.
GAPS = 200


@contextmanager
def during_prefill(setup: Setup) -> Iterator[Sides]:
    """The 99th percentile of at least 200 gaps between an agent's tokens (500 in memory) while
    another agent prefills 8,192 tokens, as often as it takes; against its median step alone."""
    prompt = setup.prompt(setup.scale.tokens(8192))
    least = max(8, GAPS // setup.scale.shrink)
    with setup.system() as system:
        decoder = hot_agents(system, [setup.prompt(setup.scale.tokens(500))])[0]

        def disturbed() -> Side:
            found: list[float] = []
            tokens: list[int] = []
            while len(found) < least:
                times, tokens = _disturbed(decoder, system.spawn("reader"), prompt)
                found += np.diff(times).tolist()
                decoder.rewind().get()
                system.forget("reader")
            return Side(float(np.percentile(found, 99)), tokens[:2])

        def alone() -> Side:
            with decoder.stream([1], sampling=ENDLESS) as stream:
                tokens, times = [*next(stream).token_ids], [time.perf_counter()]
                while len(times) < least:
                    tokens += next(stream).token_ids
                    times.append(time.perf_counter())
            decoder.rewind().get()
            return Side(median(np.diff(times)), tokens[:2])

        yield disturbed, alone


def _disturbed(decoder: Agent, reader: Agent, prompt: list[int]) -> tuple[list[float], list[int]]:
    """Token times of the decoder until the reader has its first token, and the tokens."""
    with decoder.stream([1], sampling=ENDLESS) as stream:
        tokens = [*next(stream).token_ids]
        future = reader.ask(prompt, sampling=FIRST)
        times = []
        for piece in stream:
            tokens += piece.token_ids
            times.append(time.perf_counter())
            if future.done:
                break
    assert stream.reply.finish_reason == "cancelled"
    return times, tokens


class _Saving(NamedTuple):
    """Gaps of a reader from the end of another's turn until that is saved, and as many after."""

    during: Sequence[float]
    after: Sequence[float]
    tokens: Sequence[int]
    """The first of the reader's, before the other agent came."""

    @property
    def added(self) -> float:
        """Seconds by which gaps during the save exceed the median of those after it, noise
        included: no gap that is shorter makes up for one that is longer."""
        base = median(self.after)
        return sum(max(0.0, gap - base) for gap in self.during)


class _Savers:
    """A reader of 500 tokens beside an agent whose turn of 16,384 is saved, in a new store each
    time."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self._setup, self._folder, self._numbers = setup, folder, count()
        self._prompt = setup.prompt(setup.scale.tokens(LONG))
        self._short = setup.prompt(setup.scale.tokens(500))
        self.nbytes = len(self._prompt) * setup.loaded.spec.bytes_per_token

    def measure(self) -> _Saving:
        store = self._folder / str(next(self._numbers))
        # The writer's prefill takes long chunks: only its end is of interest.
        with self._setup.system(store=store, target_latency=60.0) as system:
            decoder, writer = system.spawn("decoder"), system.spawn("writer")
            answer(decoder, self._short)
            with decoder.stream([1], sampling=ENDLESS) as stream:
                tokens = next(stream).token_ids
                asked, times = time.perf_counter(), list[float]()
                future = writer.ask(self._prompt, sampling=FIRST)
                while not future.done:
                    next(stream)
                    times.append(time.perf_counter())
                reply = future.get()
                # Of the same step as the writer's only token is the decoder's that came next.
                ended = asked + reply.timing.first_token
                times = [ended, *[at for at in times if at > ended][1:]]
                while len(times) < 8 or not reply.cached.done:
                    next(stream)
                    times.append(time.perf_counter())
                during = len(times)
                while len(times) < 2 * during:
                    next(stream)
                    times.append(time.perf_counter())
        gaps = np.diff(times).tolist()
        return _Saving(gaps[: during - 1], gaps[during - 1 :], tokens)

    def step(self) -> Side:
        """The reader's step alone, without a store."""
        with self._setup.system() as system:
            agents = hot_agents(system, [self._short])
            seconds, tokens = step(system, agents, self._setup.scale.decoded)
            return Side(seconds, tokens[:1])


@contextmanager
def seconds_of_saving(setup: Setup) -> Iterator[Sides]:
    """Seconds by which an agent's tokens (500 in memory) come later from the end of another's turn
    of 16,384 tokens until that is saved: what gaps exceed the median of as many after it, summed
    up; against writing and syncing a file of as many bytes as its KV."""
    with TemporaryDirectory(prefix="kvactors-bench-") as folder:
        savers = _Savers(setup, Path(folder))
        yield (
            lambda: Side(savers.measure().added),
            lambda: Side(raw_write(Path(folder) / "file", savers.nbytes)),
        )


@contextmanager
def gap_of_saving(setup: Setup) -> Iterator[Sides]:
    """The worst of the same gaps, against the mean step of the same agent alone, without a
    store."""
    with TemporaryDirectory(prefix="kvactors-bench-") as folder:
        savers = _Savers(setup, Path(folder))

        def worst() -> Side:
            found = savers.measure()
            return Side(max(found.during), found.tokens[:1])

        yield worst, savers.step


REGIMES = (
    Regime("gap-p99-during-8k", "its median step alone", 6.0, during_prefill),
    Regime(
        "save-16k-adds",
        "writing and syncing as many bytes",
        1.0,
        seconds_of_saving,
        differ=NOTHING_DECODED,
    ),
    Regime("save-16k-gap", "its step alone", 3.0, gap_of_saving),
)
