"""A short way out of a grammar: tokens after which an answer may end. Pure: any thread.

Asked of the matcher alone, so that it holds for every kind of grammar, by a few tokens that stand
for all, what closes first, then what separates. A walk that comes to where the same is allowed as
before takes another one, so that it leaves every loop. One walk does not, since a list of so many
items is a loop that ends by itself. Before these long ones a short one is tried, and one that looks
a token ahead, for what was allowed least often, since what leads on may be one sign of many, as in
an address. Where all walks were too long, a search, breadth first, looks for a way of few tokens.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = ["LONGEST", "Tokens", "short_way", "shortest_way"]

# The longest way that is looked for, how many walks look for it, which of them is steady, and how
# many visits bring no further walk: others would wait for it.
LONGEST = 4096
WALKS = 8
STEADY = 1
ENOUGH = 2048
# How long a first walk is, and how many tokens the one that looks ahead looks at: in all, and
# within a part of what is said.
SHORT = 256
LOOKS = 4096
PART = 512
# How far a search goes, and how many ways of a length it follows.
FAR = 32
FEW = 2
ALLOWED = b"\xc8"
# Where more of the vocabulary is allowed it is a text that goes on.
TEXT = 0.4


class Tokens(Protocol):
    """What a tokenizer's ids say. `stand_ins`: groups of tokens of which one stands for all as far
    as ways out are concerned, the best first; `text_stand_ins`: within a text."""

    @property
    def stand_ins(self) -> Sequence[Sequence[int]]: ...

    @property
    def text_stand_ins(self) -> Sequence[Sequence[int]]: ...

    def encode(self, text: bytes) -> list[int]:
        """Token ids that say these bytes."""
        ...


class _Way(NamedTuple):
    taken: tuple[int, ...]
    matcher: "LLMatcher"


def short_way(tokens: Tokens, matcher: "LLMatcher", most: int) -> tuple[int, ...] | None:
    """Ids of `tokens`, `most` at most, after which the answer may end; None if no such way is
    found. The `matcher` stays where it is."""
    way = _walk(tokens, matcher.deep_copy(), min(most, SHORT), {})
    if way is None:
        way = _steered_walk(tokens, matcher.deep_copy(), most)
    if way is not None:
        return way
    tried: dict[bytes, int] = {}
    for number in range(WALKS):
        if number > STEADY and sum(tried.values()) > ENOUGH:
            break
        way = _walk(tokens, matcher.deep_copy(), most, None if number == STEADY else tried)
        if way is not None:
            return way
    return _search(tokens, matcher.deep_copy(), most)


def shortest_way(tokens: Tokens, matcher: "LLMatcher") -> tuple[int, ...] | None:
    """The shortest way of ids of `tokens` that is found, of `LONGEST` at most."""
    best, way = None, short_way(tokens, matcher, LONGEST)
    while way is not None:
        best, way = way, short_way(tokens, matcher, len(way) - 1)
    return best


def _search(tokens: Tokens, matcher: "LLMatcher", most: int) -> tuple[int, ...] | None:
    """Breadth first: of the ways of a length a few are followed, rather those behind which
    something new is allowed."""
    ahead: dict[int, list[_Way]] = {}
    seen: set[bytes] = set()
    _add(ahead, tokens, _Way((), matcher))
    for length in range(min(most, FAR) + 1):
        ways = ahead.pop(length, [])
        for way in ways:
            if way.matcher.is_accepting():
                return way.taken
        for way, allowed in _best(ways, seen):
            for token in _allowed(tokens, allowed):
                onward = way.matcher.deep_copy()
                if onward.consume_token(token):
                    _add(ahead, tokens, _Way((*way.taken, token), onward))
    return None


def _add(ahead: dict[int, list[_Way]], tokens: Tokens, way: _Way) -> None:
    """File a way under its length, with what must follow it in any case."""
    way = _Way((*way.taken, *_force(tokens, way.matcher)), way.matcher)
    ahead.setdefault(len(way.taken), []).append(way)


def _best(ways: Sequence[_Way], seen: set[bytes]) -> list[tuple[_Way, bytes]]:
    """The ways to follow, with what each allows next: new ones first, of equal ones one."""
    fresh: dict[bytes, _Way] = {}
    known: dict[bytes, _Way] = {}
    for way in ways:
        allowed = way.matcher.compute_logit_bias()
        (known if allowed in seen else fresh).setdefault(allowed, way)
    seen.update(fresh)
    return [(way, allowed) for allowed, way in [*fresh.items(), *known.items()][:FEW]]


def _force(tokens: Tokens, matcher: "LLMatcher") -> list[int]:
    """Let the matcher take what must come next; the tokens of it."""
    forced = b"" if matcher.is_accepting() else matcher.compute_ff_bytes()
    ids = tokens.encode(forced)
    return ids[: matcher.try_consume_tokens(ids)]


def _walk(
    tokens: Tokens, matcher: "LLMatcher", most: int, tried: dict[bytes, int] | None
) -> tuple[int, ...] | None:
    """A way of `most` tokens; `tried` counts the visits where the same tokens are allowed, and a
    steady walk counts none."""
    way: list[int] = []
    while not matcher.is_accepting():
        way += _force(tokens, matcher)
        if matcher.is_accepting():
            break
        if len(way) >= most:
            return None
        allowed = matcher.compute_logit_bias()
        visit = 0
        if tried is not None:
            visit = tried[allowed] = tried.get(allowed, -1) + 1
        token = _candidate(tokens, allowed, visit)
        if token is None or not matcher.consume_token(token):
            return None
        way.append(token)
    return tuple(way) if len(way) <= most else None


def _steered_walk(tokens: Tokens, matcher: "LLMatcher", most: int) -> tuple[int, ...] | None:
    """A way of `most` tokens, each of them towards what was allowed least often before."""
    way: list[int] = []
    met = Counter[bytes]()
    looks, part = 0, 0
    while looks < LOOKS and looks - part < PART:
        if forced := _force(tokens, matcher):
            # Of one part that is behind it the next one says nothing.
            met.clear()
            part = looks
            way += forced
        if matcher.is_accepting():
            return tuple(way) if len(way) <= most else None
        if len(way) >= most:
            return None
        allowed = matcher.compute_logit_bias()
        met[allowed] += 1
        found: list[tuple[int, int, LLMatcher]] = []
        for token in dict.fromkeys(_allowed(tokens, allowed)):
            onward = matcher.deep_copy()
            if not onward.consume_token(token):
                continue
            looks += 1
            found.append((met[onward.compute_logit_bias()], token, onward))
            if not found[-1][0]:
                break
        if not found:
            return None
        _, token, matcher = min(found, key=lambda step: step[0])
        way.append(token)
    return None


def _candidate(tokens: Tokens, allowed: bytes, visit: int) -> int | None:
    """Of one allowed token of each group, and any other, the one whose turn it is."""
    found = next(islice(_allowed(tokens, allowed), visit, None), None)
    if found is not None:
        return found
    every = [*_allowed(tokens, allowed)]
    return every[visit % len(every)] if every else None


def _allowed(tokens: Tokens, allowed: bytes) -> Iterator[int]:
    in_text = allowed.count(ALLOWED) > TEXT * len(allowed)
    for group in tokens.text_stand_ins if in_text else tokens.stand_ins:
        yield from islice((token for token in group if allowed[token]), 1)
    other = allowed.find(ALLOWED)
    if other >= 0:
        yield other
