"""What token sequences have in common: their hashes, and the length of what they share.

Pure: any thread.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import xxhash

__all__ = ["common_prefix", "prefix_hashes", "tokens_hash"]


def tokens_hash(tokens: Iterable[int]) -> str:
    """Hash of token ids, to tell whether stored KV belongs to a transcript's beginning."""
    known = list(tokens)
    return next(prefix_hashes(known, [len(known)]))


def prefix_hashes(tokens: Sequence[int], ends: Iterable[int]) -> Iterator[str]:
    """`tokens_hash(tokens[:end])` for ascending ends, in one pass."""
    digest, done = xxhash.xxh3_128(), 0
    for end in ends:
        digest.update(np.asarray(tokens[done:end], dtype="<u4").tobytes())
        done = end
        yield digest.hexdigest()


def common_prefix(first: Sequence[object], second: Sequence[object]) -> int:
    """How many leading items two sequences share: token ids, or the characters of strings."""
    shorter = min(len(first), len(second))
    if first[:shorter] == second[:shorter]:
        return shorter
    # Bisecting over slices compares in C; the loop runs log2(n) times.
    low, high = 0, shorter - 1
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
