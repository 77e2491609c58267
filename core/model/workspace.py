"""Work space: what a forward needs beside the KV, measured once at load. GPU thread only.

A step of T new tokens a row over E keys holds, at its worst moment, something for each new
token (activations), for each pair of token and key (scores), and for each key (a dequantized
layer). The three factors are solved from the peaks of three small forwards.
"""

import sys
from bisect import bisect_right
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from kvactors.core.arena.arena import Arena
from kvactors.core.attention.products_cpu import LEAST_KEYS
from kvactors.core.cache.blocks import BLOCK_TOKENS
from kvactors.core.model import mlx_limit
from kvactors.core.model.load import LoadedModel

__all__ = ["LEAST_CHUNK", "WorkSpace", "forward_bytes"]

# (new tokens, keys) of the forwards that are measured, and of a decode step. Fewer tokens may
# take another path, which needs less.
_CHUNKS = ((64, 64), (64, 1024), (128, 1024))
_DECODE_KEYS = 512
# Peaks are not exactly linear, and MLX builds somewhat ahead of what it computes (bench/LOG.md).
_SAFETY, _DECODE_SAFETY = 2.0, 2.4
# Tokens of a chunk that idle agents leave for, and other turns give way to.
LEAST_CHUNK = 32
# Measurements, until none was disturbed.
_TRIES = 3


@dataclass(frozen=True, slots=True)
class WorkSpace:
    """Bytes for each new token, for each token and key, for each key, and for a decode step
    for each row and key; `unpacked` if there are `many` of those, which may become floats. No
    chunk is shortened below `least_chunk` tokens."""

    token: float
    pair: float
    key: float
    decoded: float
    unpacked: float = 0.0
    many: int = sys.maxsize
    least_chunk: int = LEAST_CHUNK

    @classmethod
    def measure(cls, loaded: LoadedModel) -> "WorkSpace":
        """Run the forwards; a second on a CPU for a small model. Resets MLX's peak counter."""
        needs = [[tokens, tokens * keys, keys] for tokens, keys in _CHUNKS]
        # The first forward of a process makes what others find made.
        _peak(loaded, *_CHUNKS[0])
        peaks = [_peak(loaded, tokens, keys) for tokens, keys in _CHUNKS]
        factors = np.maximum(0.0, np.linalg.solve(needs, peaks)) * _SAFETY
        token, pair, key = (float(factor) for factor in factors)
        decoded = _decode_peak(loaded, _DECODE_KEYS)
        heads = [layer.kv_heads for layer in loaded.spec.layers if layer.kv_heads]
        least_chunk = BLOCK_TOKENS if loaded.fixed_chunks else LEAST_CHUNK
        space = cls(token, pair, key, decoded, least_chunk=least_chunk)
        if not heads or not loaded.policy.unpacks(1, 1):
            return space
        unpacked = _decode_peak(loaded, max(_DECODE_KEYS, -(-LEAST_KEYS // min(heads))))
        return replace(space, unpacked=max(decoded, unpacked), many=LEAST_KEYS // max(heads))

    def with_more(self, nbytes: int) -> "WorkSpace":
        """That of chunks each of whose tokens takes so many bytes more."""
        return replace(self, token=self.token + nbytes)

    def chunk(self, tokens: int, rows: int, keys: int) -> int:
        """Bytes of a chunk of `tokens` new tokens in each of `rows` rows, over `keys` keys."""
        return int(rows * (tokens * (self.token + keys * self.pair) + keys * self.key))

    def decode(self, rows: int, keys: int, shared: int = 0) -> int:
        """Bytes of a decode step of `rows` rows, padded to `keys` keys; `shared` of them are
        dequantized for all rows at once."""
        factor = self.unpacked if rows * keys >= self.many else self.decoded
        return int(rows * keys * factor + shared * self.key)

    def least(self, keys: int, others: int) -> int:
        """Bytes that the least chunk of one row needs, or a decode step of it and `others`."""
        return max(self.chunk(min(keys, self.least_chunk), 1, keys), self.decode(1 + others, keys))

    def longest_chunk(self, asked: int, cached: int, room: int) -> int:
        """The longest chunk of one row behind `cached` tokens, of at most `asked` tokens, that
        `room` bytes allow; at least 1."""
        fit = bisect_right(range(asked + 1), room, key=lambda n: self.chunk(n, 1, cached + n))
        return max(1, fit - 1)


def _decode_peak(loaded: LoadedModel, keys: int) -> float:
    """Bytes for each key of a decode step of one row."""
    return _DECODE_SAFETY * _peak(loaded, 1, keys) / keys


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
    arena = Arena(loaded.spec, loaded.policy, max_slabs=1)
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
