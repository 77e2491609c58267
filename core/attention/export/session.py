"""Caches under keys, and programs that are loaded with one [cache-family, 4.3, 4.4].

    with make_tree_session(config) as session:
        target = Loaded(program, session.key)
        session.cache.propose(parents)
        logits = target.execute(tokens, session.cache.positions)

On the thread that runs the program.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kvactors.core.attention.export.cells import Cells, answering
from kvactors.core.cache.family.config import CacheConfig
from kvactors.core.cache.family.faces import DecodeCache, Planner, SeqCache, TreeCache
from kvactors.core.cache.family.registry import build, registry
from kvactors.core.cache.family.session import CacheSession
from kvactors.core.cache.family.step_plan import whole_numbers
from kvactors.core.errors import InvalidConfig, InvalidStep

__all__ = ["Loaded", "make_decode_session", "make_seq_session", "make_tree_session"]


class Loaded:
    """A torch `program` that calls the op, a model or an exported one, bound to the cache that is
    under `cache_key` now. It goes on when the key is erased; keys and values go with it, and are
    shared by all programs that are loaded with one key (one for prefill, one for decoding).

    Raises InvalidConfig where nothing is under the key.
    """

    def __init__(self, program: Callable[..., Any], cache_key: str) -> None:
        self._program = program
        self._cache = registry.get(cache_key, Planner)
        self._cells = Cells.of(self._cache)

    def execute(self, tokens: Sequence[int], positions: Sequence[int]) -> Any:
        """One forward of these tokens, each at its position: what the program returns of both,
        [T]. Whose the tokens are was said before, by `begin_step` or `propose`.

        Raises InvalidStep, CacheFull before anything is done. If the program raises the cache is
        as before, and what was declared for the step stays so.
        """
        fed = whole_numbers("a token", tokens)
        if len(fed) != len(positions):
            raise InvalidStep(f"a step of {len(fed)} tokens was given {len(positions)} positions")
        self._cache.plan(positions)
        try:
            with torch.no_grad(), answering(self._cells):
                outputs = self._program(torch.tensor(fed), torch.tensor(list(positions)))
        except BaseException:
            self._cache.take_back()
            raise
        self._cache.end_step()
        return outputs


def make_decode_session(config: CacheConfig) -> CacheSession[DecodeCache]:
    """One sequence of tokens, which may be rewound. Raises InvalidConfig, FaceMismatch."""
    return CacheSession(build("contiguous", DecodeCache, _in_floats(config)))


def make_seq_session(config: CacheConfig) -> CacheSession[SeqCache]:
    """Sequences that fork without a copy and step together; errors as before."""
    return CacheSession(build("seq", SeqCache, _in_floats(config)))


def make_tree_session(config: CacheConfig) -> CacheSession[TreeCache]:
    """Trees of candidates behind what is committed; errors as before."""
    return CacheSession(build("tree", TreeCache, _in_floats(config)))


def _in_floats(config: CacheConfig) -> CacheConfig:
    if config.bits is not None:
        raise InvalidConfig(
            f"bits is {config.bits}: torch keeps keys and values as floats here, so it is None "
            "(codes are what sessions of mlx-lm's models have)"
        )
    return config
