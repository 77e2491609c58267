"""Prefix matching by characters, immune to how a tokenizer splits text (seed 000, 3.3).

Token ids of the same text change with what stands before and after it; characters do not.
A new prompt is compared with the cached text, and the match is mapped to the last token
boundary inside it: a token is reused only if all of its characters match.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Match", "MatchKind", "match_text", "token_boundary"]

MatchKind = Literal["exact", "extend", "diverge"]


@dataclass(frozen=True, slots=True)
class Match:
    """`characters` of the cached text can be kept; 0 means start again."""

    kind: MatchKind
    characters: int


def match_text(cached: str, prompt: str, threshold: float = 0.8) -> Match:
    """Compare a full prompt with the cached text (seed 001, algorithm 1).

    exact: the same text. extend: the prompt goes on where the cached text ends. diverge:
    they part; what matches is kept if it is at least `threshold` of the cached text.
    """
    if prompt == cached:
        return Match("exact", len(cached))
    if prompt.startswith(cached):
        return Match("extend", len(cached))
    common = _common_prefix(cached, prompt)
    return Match("diverge", common if common >= threshold * len(cached) else 0)


def token_boundary(ends: Sequence[int], characters: int) -> int:
    """Tokens that lie wholly within the first `characters` characters.

    `ends[i]` is the character offset at which token i ends, ascending.
    """
    return bisect_right(ends, characters)


def _common_prefix(first: str, second: str) -> int:
    # Bisecting over slices compares in C; the loop runs log2(n) times.
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[:middle] == second[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
