"""Guide: a grammar in one turn. What may come next, and how the answer still ends in time.

An answer always has a way out, tokens after which it may end, that fits what is left of
`max_tokens`. A drawn token after which no way fits is not taken: the first token of the way that
was known is, in its place. So an answer of `max_tokens` is whole, whatever the model draws.

What is taken depends on the tokens of the turn alone: a turn that gave way, or whose engine was
built anew, goes on from its tokens. One thread at a time.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from kvactors.core.errors import InvalidGrammar
from kvactors.core.schedule.completion import LONGEST, Tokens, short_way, shortest_way
from kvactors.core.schedule.grammar import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = ["Guide"]

# How much of a known way a token may have said, in tokens.
RESTS = 8
# Grammars of one tokenizer whose first way out is kept.
MOST_KEPT = 64


class Compiler(Tokens, Protocol):
    """A tokenizer that grammars are compiled for. `end` ends an answer; ids are below `size`."""

    end: int
    size: int

    def __hash__(self) -> int: ...

    def matcher(self, source: str) -> "LLMatcher":
        """A matcher at the beginning of a grammar."""
        ...


# As long as there is their tokenizer.
_first_ways = WeakKeyDictionary[Compiler, dict[Grammar, tuple[int, ...] | None]]()


class Guide:
    """Keeps a turn, its ids being those of `tokens`, to a `grammar` within `max_tokens`, behind the
    tokens that the answer has `begun` with. Raises InvalidGrammar if no answer of so many is found,
    or none begins so."""

    def __init__(
        self, tokens: Compiler, grammar: Grammar, max_tokens: int, begun: Sequence[int] = ()
    ) -> None:
        self._tokens = tokens
        self._start = tokens.matcher(grammar.source)
        self._most = max_tokens
        kind = grammar.kind.replace("_", " ")
        if self._start.validate_tokens([*begun]) < len(begun):
            raise InvalidGrammar("no answer of the form that is asked for begins as this one does")
        self._start.consume_tokens([*begun])
        if begun and self._start.is_stopped():
            raise InvalidGrammar("what the answer begins with is whole: nothing can follow it")
        way = shortest_way(tokens, self._start) if begun else _first_way(tokens, grammar)
        if way is None:
            raise InvalidGrammar(
                f"no answer of at most {LONGEST} tokens was found that this {kind} allows and the "
                "model's tokens can say"
            )
        if len(way) > max_tokens:
            raise InvalidGrammar(
                f"the shortest answer that was found for this {kind} takes {len(way)} tokens, more "
                f"than max_tokens {max_tokens}"
            )
        self._first_way = way
        self._begin()

    def _begin(self) -> None:
        self._matcher = self._start.deep_copy()
        self._taken: list[int] = []
        # The way out behind each number of tokens that were taken.
        self._ways = [self._first_way]

    @property
    def left(self) -> int:
        """How many tokens the answer may still have."""
        return self._most - len(self._taken)

    @property
    def way(self) -> tuple[int, ...]:
        """Tokens after which the answer may end."""
        return self._ways[-1]

    @property
    def complete(self) -> bool:
        """Whether nothing can follow but the end."""
        return self._matcher.is_stopped()

    def completed_by(self, count: int) -> bool:
        """Whether nothing can follow the first `count` tokens but the end; it may stand further
        on, behind tokens that were read together with them."""
        return len(self._taken) <= count and self.complete

    def follow(self, tokens: Sequence[int]) -> None:
        """Stand behind these tokens of the turn, from wherever it was."""
        known = len(self._taken)
        if self._taken != tokens[:known]:
            pairs = zip(self._taken, tokens, strict=False)
            known = next((n for n, (one, other) in enumerate(pairs) if one != other), len(tokens))
            self._go_back(known)
        for token in tokens[known:]:
            self.take(token)

    def takes(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` it would take one after the other, each as it is and none that is
        the last one of the answer. It stays where it is."""
        begun = len(self._taken)
        for token in tokens:
            if self.left <= 1 or not self._matcher.validate_tokens([token]):
                break
            if self.take(token) != token or self.complete:
                self._go_back(len(self._taken) - 1)
                break
        count = len(self._taken) - begun
        self._go_back(begun)
        return count

    def take(self, token: int) -> int:
        """Go on by a drawn token; returns the one that is taken."""
        left = self.left - 1
        self._consume(token)
        way = self._way_after(token, left)
        if way is None:
            self._matcher.rollback(1)
            token, way = (*self.way, self._tokens.end)[0], self.way[1:]
            self._consume(token)
        self._ways.append(way)
        self._taken.append(token)
        return token

    def allowed(self) -> bytes:
        """For each token id a byte, 0 where it may not come next. Where only the known way is
        short enough, it is that."""
        if self.left > len(self.way):
            return self._matcher.compute_logit_bias()
        only = bytearray(self._tokens.size)
        only[self.way[0]] = 1
        return bytes(only)

    def _go_back(self, count: int) -> None:
        """Stand behind the first `count` of the tokens that were taken."""
        kept = self._taken[:count]
        if self._matcher.rollback(len(self._taken) - count):
            del self._taken[count:], self._ways[count + 1 :]
            return
        self._begin()
        for token in kept:
            self.take(token)

    def _consume(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            reason = self._matcher.get_error()
            # This one takes nothing any more, and what failed may only have been drafted.
            self._begin()
            raise InvalidGrammar(f"the grammar cannot go on: {reason}")

    def _way_after(self, token: int, left: int) -> tuple[int, ...] | None:
        """A way out that fits, behind a token that was just consumed: what is still right of the
        way before it, or a new one."""
        if self._matcher.is_accepting():
            return ()
        way = self.way
        if way and way[0] == token:
            return way[1:]
        begins = range(min(len(way), RESTS))
        # Near the end the less is right, the later it must be taken.
        near = left <= len(way) + RESTS
        for rest in (way[begin:] for begin in (reversed(begins) if near else begins)):
            if len(rest) <= left and self._ends(rest):
                return rest
        return short_way(self._tokens, self._matcher, left)

    def _ends(self, way: tuple[int, ...]) -> bool:
        tokens = [*way, self._tokens.end]
        return self._matcher.validate_tokens(tokens) == len(tokens)


def _first_way(tokens: Compiler, grammar: Grammar) -> tuple[int, ...] | None:
    """The way out from the beginning of a grammar; looked for once."""
    known = _first_ways.setdefault(tokens, {})
    if grammar in known:
        return known[grammar]
    way = shortest_way(tokens, tokens.matcher(grammar.source))
    if len(known) >= MOST_KEPT:
        # Others may look into the old ones just now.
        known = _first_ways[tokens] = {}
    known[grammar] = way
    return way
