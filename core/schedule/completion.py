"""A short way out of a grammar: tokens after which an answer may end. Pure: any thread.

Asked of the matcher alone, so that it holds for every kind of grammar. A walk takes what closes
where that is allowed, or else the next of a few tokens that stand for all. Where the same tokens
are allowed as before it takes another one, so that it leaves every loop; the shortest of some
walks is the way.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = ["LONGEST", "Tokens", "short_way"]

# The longest way that is looked for, and how many walks look for it.
LONGEST = 4096
WALKS = 4
ALLOWED = b"\xc8"


class Tokens(Protocol):
    """What a tokenizer's ids say. `stand_ins`: groups of tokens of which one stands for all as far
    as ways out are concerned, the best first."""

    @property
    def stand_ins(self) -> Sequence[Sequence[int]]: ...

    def encode(self, text: bytes) -> list[int]:
        """Token ids that say these bytes."""
        ...


def short_way(tokens: Tokens, matcher: "LLMatcher", most: int) -> tuple[int, ...] | None:
    """Ids of `tokens`, `most` at most, after which the answer may end; None if no such way is
    found. The `matcher` stays where it is."""
    tried: dict[bytes, int] = {}
    best: tuple[int, ...] | None = None
    for _ in range(WALKS):
        found = _walk(tokens, matcher.deep_copy(), most, tried)
        if found is not None:
            best, most = found, len(found) - 1
    return best


def _walk(
    tokens: Tokens, matcher: "LLMatcher", most: int, tried: dict[bytes, int]
) -> tuple[int, ...] | None:
    """A way of `most` tokens; `tried` counts the visits where the same tokens are allowed."""
    way: list[int] = []
    while not matcher.is_accepting():
        forced = tokens.encode(matcher.compute_ff_bytes())
        way += forced[: matcher.try_consume_tokens(forced)]
        if matcher.is_accepting():
            break
        allowed = matcher.compute_logit_bias()
        candidates = _candidates(tokens, allowed)
        visits = tried[allowed] = tried.get(allowed, -1) + 1
        if len(way) >= most or not candidates:
            return None
        way.append(candidates[visits % len(candidates)])
        matcher.consume_token(way[-1])
    return tuple(way) if len(way) <= most else None


def _candidates(tokens: Tokens, allowed: bytes) -> list[int]:
    """One allowed token of each group, and any other."""
    found = [next((i for i in group if allowed[i]), -1) for group in tokens.stand_ins]
    found.append(allowed.find(ALLOWED))
    return [token for token in dict.fromkeys(found) if token >= 0]
