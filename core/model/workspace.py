"""Work space: what a forward needs beside the KV, measured once at load. GPU thread only.

A step of T new tokens a row over E keys holds, at its worst moment, something for each new
token (activations), for each pair of token and key (scores), and for each key (a dequantized
layer). Layers of different kinds have their worst moments one after the other: the three factors
are the least that cover the peaks of a few forwards.
"""

import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import mlx.core as mx
import numpy as np

from kvactors.core.arena.arena import Arena
from kvactors.core.attention.products_cpu import LEAST_KEYS
from kvactors.core.cache.blocks import BLOCK_TOKENS, block_floor
from kvactors.core.model import mlx_limit
from kvactors.core.model.load import LoadedModel
from kvactors.core.quant.device import on_cuda

__all__ = ["LEAST_CHUNK", "WorkSpace", "bare", "cover", "forward_bytes"]

# (new tokens, keys) of the forwards that are measured. Fewer tokens may take another path, which
# needs less. Where chunks are blocks at most, these may take a path of their own, and what a
# recurrent layer needs grows with their square, or in leaps. Where they are blocks and nothing
# else, what is left behind the last takes the other path, which keeps all scores.
_CHUNKS = ((64, 64), (64, 1024), (128, 2048))
_BLOCKS = ((BLOCK_TOKENS, BLOCK_TOKENS), (BLOCK_TOKENS, 2048))
_LEFT = tuple((tokens - 1, keys) for tokens, keys in _BLOCKS)
# Keys of the decode steps that are measured: few, and many that do not become floats.
_FEW_KEYS, _SHORT, _LONG = 64, 512, 2048
# Peaks are not exactly linear, and MLX builds somewhat ahead of what it computes (bench/LOG.md):
# of a forward that builds nothing ahead only the first counts, and that a busy machine may free
# what an operation read after the next has allocated.
_SAFETY, _DECODE_SAFETY, _ALONE = 2.0, 2.4, 1.5
# Tokens of a chunk that idle agents leave for, and other turns give way to.
LEAST_CHUNK = 32
# Measurements, until none was disturbed.
_TRIES = 3
# Arrays of logits that live at once while the choices of an answer are scored.
_LOGITS = 4


@dataclass(frozen=True, slots=True)
class WorkSpace:
    """Bytes for each new token, for each token and key, for each key; of a decode step for each
    row, and for each row and key, which are `unpacked` if there are `many` of those, which may
    become floats; for each token whose `logits` are looked at. Keys are read in multiples of
    `step`. No chunk is shortened below `least_chunk` tokens; where they are `fixed`, none is
    shortened at all, and those of a whole block need what `block` says."""

    token: float
    pair: float
    key: float
    decoded: float
    unpacked: float = 0.0
    many: int = sys.maxsize
    least_chunk: int = LEAST_CHUNK
    fixed: bool = False
    row: float = 0.0
    logits: float = 0.0
    step: int = 1
    block: "WorkSpace | None" = None

    @classmethod
    def measure(cls, loaded: LoadedModel) -> "WorkSpace":
        """Run the forwards; a second on a CPU for a small model. Resets MLX's peak counter."""
        # The first forward of a process makes what others find made.
        _peak(loaded, *_CHUNKS[0])
        fixed, step = loaded.fixed_chunks, loaded.policy.extent_step
        longest = _LEFT if fixed else _BLOCKS
        chunks = [*_CHUNKS, *longest] if loaded.spec.checkpointed else _CHUNKS
        token, pair, key = _factors(loaded, chunks)
        block = _factors(loaded, _BLOCKS) if fixed else None
        unpacks = loaded.policy.unpacks(1, 1)
        steps = (_FEW_KEYS, _SHORT if unpacks else _LONG)
        peaks = [_peak(loaded, 1, keys) for keys in steps]
        row, decoded = cover([[1, keys] for keys in steps], peaks)
        heads = [layer.kv_heads for layer in loaded.spec.layers if layer.kv_heads]
        space = cls(
            token,
            pair,
            key,
            decoded * _DECODE_SAFETY,
            least_chunk=BLOCK_TOKENS if fixed else LEAST_CHUNK,
            fixed=fixed,
            row=row * _DECODE_SAFETY,
            logits=_LOGITS * mx.float32.size * loaded.spec.vocab_size,
            step=step,
            block=block and cls(*block, decoded=0.0, step=step),
        )
        if not heads or not unpacks:
            return space
        keys = max(_SHORT, -(-LEAST_KEYS // min(heads)))
        unpacked = _DECODE_SAFETY * _peak(loaded, 1, keys) / keys
        return replace(space, unpacked=max(space.decoded, unpacked), many=LEAST_KEYS // max(heads))

    @classmethod
    def once(cls, loaded: LoadedModel) -> "WorkSpace":
        """The same, measured once per process, device and model that is attended this way: who
        loads it again after a failure need not wait for it."""
        place = str(mx.default_device())
        # Tests have bytes of their own in place of what is measured.
        key = loaded.fingerprint, loaded.form, loaded.policy, place, forward_bytes
        if key not in _measured:
            _measured[key] = cls.measure(loaded)
        return _measured[key]

    @property
    def _scored(self) -> float:
        """Of each key of a row that is read for all rows at once: a GPU whose kernels keep no
        scores of a step keeps these."""
        return max(self.decoded, self.pair) if on_cuda() else self.decoded

    @property
    def scored(self) -> "WorkSpace":
        """That of chunks whose tokens' logits are all looked at."""
        block = self.block and replace(self.block, token=self.block.token + self.logits)
        return replace(self, token=self.token + self.logits, block=block)

    def chunk(self, tokens: int, rows: int, keys: int) -> int:
        """Bytes of a chunk of `tokens` new tokens in each of `rows` rows, over `keys` keys."""
        if self.block and tokens == BLOCK_TOKENS:
            return self.block.chunk(tokens, rows, keys)
        keys = _padded(keys, self.step)
        return int(rows * (tokens * (self.token + keys * self.pair) + keys * self.key))

    def decode(self, rows: int, keys: int, shared: int = 0, once: int = 0) -> int:
        """Bytes of a decode step of `rows` rows, padded to `keys` keys; `shared` of them are
        dequantized for all rows at once, which are `once` keys of rows: so many are only scored."""
        keys = _padded(keys, self.step)
        factor = self.unpacked if rows * keys >= self.many else self.decoded
        alone = max(0, rows * keys - once)
        return int(rows * self.row + alone * factor + once * self._scored + shared * self.key)

    def choice(self, tokens: int, rows: int, keys: int) -> int:
        """Bytes of the scoring of a choice of `tokens` tokens in a batch of `rows` rows, over
        `keys` keys."""
        return self.chunk(tokens, rows, keys) + int(rows * tokens * self.logits)

    def least(self, keys: int, others: int, trunk: int = 0) -> int:
        """Bytes that the least chunk of one row needs, or a decode step of it and `others`, which
        read a `trunk` of so many keys once."""
        chunk = self.chunk(min(keys, self.least_chunk), 1, keys)
        return max(chunk, self.decode(1 + others, keys, trunk, (1 + others) * trunk))

    def alone(self, target: int) -> int:
        """Bytes that a prefill of `target` tokens needs when nothing else runs, at its worst
        chunk, as short as it may be."""
        if not self.fixed:
            return bare(self.chunk(1, 1, target))
        whole = block_floor(target)
        block = self.chunk(min(BLOCK_TOKENS, whole), 1, whole)
        return bare(max(block, self.chunk(target - whole, 1, target)))

    def longest_chunk(self, asked: int, cached: int, room: int) -> int:
        """The longest chunk of one row behind `cached` tokens, of at most `asked` tokens, that
        `room` bytes allow; at least 1."""
        fit = bisect_right(range(asked + 1), room, key=lambda n: self.chunk(n, 1, cached + n))
        return max(1, fit - 1)


_measured: dict[tuple[Any, ...], WorkSpace] = {}


def _factors(loaded: LoadedModel, chunks: Sequence[tuple[int, int]]) -> tuple[float, float, float]:
    """Bytes for each new token, each pair of token and key, each key, that cover these `chunks`."""
    peaks = [_peak(loaded, tokens, keys) for tokens, keys in chunks]
    read = [(tokens, _padded(keys, loaded.policy.extent_step)) for tokens, keys in chunks]
    needs = [[tokens, tokens * keys, keys] for tokens, keys in read]
    token, pair, key = (factor * _SAFETY for factor in cover(needs, peaks))
    return token, pair, key


def cover(needs: Sequence[Sequence[float]], peaks: Sequence[float]) -> list[float]:
    """The factors, none below zero, with which every row of `needs` [n, factors] comes to at least
    its one of `peaks` [n], and all together to the least."""
    wanted, least = np.array(needs, float), np.array(peaks, float)
    solutions = [one for one in _corners(wanted, least) if (wanted @ one >= least * 0.999).all()]
    return [float(factor) for factor in min(solutions, key=lambda one: float((wanted @ one).sum()))]


def _corners(needs: np.ndarray, peaks: np.ndarray) -> Iterator[np.ndarray]:
    """Where the least can be: as many peaks are met exactly, or factors are zero, as there are."""
    factors = needs.shape[1]
    rows = np.vstack([needs, np.eye(factors)])
    ends = np.concatenate([peaks, np.zeros(factors)])
    for some in map(list, combinations(range(len(rows)), factors)):
        if np.linalg.matrix_rank(rows[some]) == factors:
            yield np.maximum(0.0, np.linalg.solve(rows[some], ends[some]))


def _padded(keys: int, step: int) -> int:
    return -(-keys // step) * step


def bare(space: int) -> int:
    """Bytes that a forward of this work `space` takes when nothing is built ahead."""
    return int(space * _ALONE / _SAFETY)


def _peak(loaded: LoadedModel, tokens: int, keys: int) -> int:
    """Bytes that MLX held at most beside the cache during one forward."""
    for _ in range(_TRIES):
        peak, freed = forward_bytes(loaded, tokens, keys)
        # What another thread's save let go of meanwhile would be missing.
        if freed <= 0:
            break
    return peak + max(0, freed)


def forward_bytes(loaded: LoadedModel, tokens: int, keys: int) -> tuple[int, int]:
    """Bytes that MLX held at most beside the cache during one forward of the `loaded` model, of
    `tokens` tokens a row that end `keys` keys, measured once; and bytes that are gone
    since it began."""
    arena = Arena(loaded.spec, loaded.policy, max_slabs=1, extent_step=loaded.policy.extent_step)
    arena.table.lean = True
    # Decoding rows have spare room; on the CPU a product over a part of a slab copies it.
    arena.add_row(keys - tokens, keys if tokens > 1 else 2 * keys)
    arena.evaluate()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    with mlx_limit.reached():
        logits = arena.forward(loaded.model, mx.ones((1, tokens), dtype=mx.int32))
        if tokens == 1:
            mx.eval(logits)
        arena.evaluate()
    return int(mx.get_peak_memory() - before), int(before - mx.get_active_memory())
