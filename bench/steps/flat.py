"""Regimes of the flat step: what it costs that rows take different numbers of tokens. Of bare
arenas, on the calling thread.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate
from time import perf_counter

import mlx.core as mx

from kvactors.bench.regime import Regime, Side, Sides
from kvactors.bench.setup import Setup
from kvactors.core.engine.runner import new_arena

__all__ = ["REGIMES"]

LENGTH = 500
# A chunk of a prompt of which so many tokens are cached, beside a row that decodes.
CHUNK, BEHIND = 64, 2048


class Rows:
    """Rows of these `lengths` in an arena of the model of `setup`, and steps of theirs that are
    taken back. `first` is the number of the first one, which says what it was and is fed."""

    def __init__(self, setup: Setup, lengths: Sequence[int], first: int = 0) -> None:
        self._model, self._lengths, self._first = setup.loaded.model, lengths, first
        self._arena = new_arena(setup.loaded)
        for seed, length in enumerate(lengths):
            alone, prompt = new_arena(setup.loaded), setup.prompt(length, first + seed)
            alone.add_row(0, length)
            for start in range(0, length, 512):
                alone.forward(self._model, mx.array([prompt[start : start + 512]]))
                alone.evaluate()
            assert self._arena.take(alone, 0) == seed, "rows of one slab stand as they come"
        # As in an engine that has memory.
        self._arena.floats = True

    def plain(self) -> list[int]:
        """A step of a token in each row, as engines take it: what follows in each."""
        fed = mx.array([[self._first + row + 1] for row in range(len(self._arena))])
        return self._read(self._arena.forward(self._model, fed)[:, -1])

    def flat(self, counts: Sequence[int]) -> list[int]:
        """A flat step of `counts` tokens, a row's all the same: what follows the first of each."""
        fed = mx.array([row + 1 for row, count in enumerate(counts) for _ in range(count)])
        tokens = self._read(self._arena.forward_flat(self._model, fed, counts))
        return [tokens[first] for first in (0, *accumulate(counts[:-1]))]

    def chunk(self, tokens: int) -> list[int]:
        """A chunk of so many tokens of the only row, as engines take it: nobody asks what follows
        it."""
        self._arena.forward(self._model, mx.array([[1] * tokens]))
        self._arena.evaluate()
        self._take_back()
        return []

    def _read(self, logits: mx.array) -> list[int]:
        found: list[int] = mx.argmax(logits, axis=-1).tolist()  # type: ignore[assignment]
        self._take_back()
        return found

    def _take_back(self) -> None:
        for row, length in enumerate(self._lengths):
            self._arena.cut(row, length)


def _timed(setup: Setup, *steps: Callable[[], list[int]]) -> Side:
    """Seconds of these steps together, one after the other; the tokens of the last round."""
    tokens: list[int] = []
    begin = perf_counter()
    for _ in range(setup.scale.decoded):
        tokens = [token for step in steps for token in step()]
    return Side((perf_counter() - begin) / setup.scale.decoded, tokens)


@contextmanager
def _against_plain(setup: Setup, counts: Sequence[int]) -> Iterator[Sides]:
    rows = Rows(setup, [setup.scale.tokens(LENGTH)] * len(counts))
    yield (
        lambda: _timed(setup, lambda: rows.flat(counts)),
        lambda: _timed(setup, rows.plain),
    )


def one_of_four(setup: Setup) -> AbstractContextManager[Sides]:
    """A forward of 4 rows of 500 tokens, of which one takes 5 tokens, against one in which each
    takes one, every step read before the next."""
    return _against_plain(setup, [5, 1, 1, 1])


def even(setup: Setup) -> AbstractContextManager[Sides]:
    """A flat forward of 4 rows of 500 tokens that take one token each, against a plain one."""
    return _against_plain(setup, [1, 1, 1, 1])


@contextmanager
def mixed(setup: Setup) -> Iterator[Sides]:
    """A chunk of 64 tokens behind 2,048 and a decode step of a row of 500, in one forward, against
    one after the other: what interleaved prefill could gain."""
    behind, length = setup.scale.tokens(BEHIND), setup.scale.tokens(LENGTH)
    together, prompt, decoding = (
        Rows(setup, [behind, length]),
        Rows(setup, [behind]),
        Rows(setup, [length], first=1),
    )
    yield (
        lambda: _timed(setup, lambda: together.flat([CHUNK, 1])[1:]),
        lambda: _timed(setup, lambda: prompt.chunk(CHUNK), decoding.plain),
    )


REGIMES = (
    Regime("flat-5-of-one", "one token in each", 1.4, one_of_four, differ="other sums"),
    Regime("flat-even", "a plain step", 1.02, even),
    Regime("flat-mixed", "a chunk, then a step", 0.95, mixed, differ="other sums"),
)
