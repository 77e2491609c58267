"""Drafts of a draft model: its own caches, and chains of tokens that it says next. GPU thread only.

Each token is drawn as its turn would draw it, with the random key of the same (agent, turn,
position): the better the draft model knows the model, the more often both draw the same. A cache
stays when its turn ends, as long as there is plenty of memory, so that the agent's next turn feeds
only what is new.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kvactors.core.conversation.hashing import common_prefix
from kvactors.core.errors import InvalidGrammar
from kvactors.core.schedule.drawing import PENALTY_CONTEXT
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.sampling import draw, draw_key

if TYPE_CHECKING:
    import mlx.core as mx

__all__ = ["Chains", "DraftRow"]

# Tokens of a prompt that are fed at once, and those by which mlx-lm's caches grow.
CHUNK = GROWTH = 256
# Tokens of a turn that are fed in one step of all, at most: others are streamed meanwhile.
MOST_AT_ONCE = 2 * CHUNK
# Agents whose caches are kept.
MOST_ROWS = 64


@dataclass(slots=True, eq=False)
class DraftRow:
    """What the draft model was fed of one agent: `tokens`, of which `agreed` are known to be those
    of the `request` that is followed."""

    cache: list[Any]
    tokens: list[int] = field(default_factory=list)
    request: Request | None = None
    agreed: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of its cache."""
        return sum(layer.nbytes for layer in self.cache)

    @property
    def fed(self) -> int:
        """Tokens that the cache holds."""
        return int(self.cache[0].offset)

    def missing(self, request: Request) -> int:
        """Tokens of a turn that are still to be fed."""
        begin = self.agreed if self.request is request else 0
        self.agreed = begin + common_prefix(self.tokens[begin:], request.tokens[begin:-1])
        self.request = request
        return len(request.tokens) - self.agreed

    def cut(self) -> None:
        """Forget what is not the turn's: what was drafted, and is not what was drawn."""
        surplus = len(self.tokens) - self.agreed
        if surplus:
            for layer in self.cache:
                layer.trim(surplus)
            del self.tokens[self.agreed :]


class Chains:
    """The caches of a draft `model` of mlx-lm, whose tokens below `vocabulary` are meant, for the
    agents that it drafts for. `plenty` says whether there is memory for a row that grows by so many
    bytes, to feed so many tokens behind so many. `positions`: how many the model was made for, if
    it says so; a learned table would be read beyond its end without a word."""

    def __init__(
        self,
        model: Any,
        vocabulary: int,
        plenty: Callable[[int, int, int], bool],
        positions: int | None = None,
    ) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._positions = positions or math.inf
        self._plenty = plenty
        # Who drafted last is last.
        self._rows: dict[str, DraftRow] = {}
        self._token_bytes = self._measure()
        self.nbytes = 0
        """Bytes of all caches."""

    def missing(self, request: Request) -> int:
        """Tokens that must be fed before the first one is drafted, at least one."""
        row = self._rows.get(request.agent_id)
        return len(request.tokens) if row is None else row.missing(request)

    def fits(self, request: Request, drafted: int) -> bool:
        """Whether the model has positions, and there is plenty of memory, to draft so many tokens
        for a turn, if what is kept of agents that do not run goes. Nothing goes yet."""
        if len(request.tokens) + drafted > self._positions:
            return False
        self.missing(request)
        idle = sum(row.nbytes for row in self._rows.values() if row.request is None)
        return self._fits(request, drafted, idle)

    def _fits(self, request: Request, drafted: int, spared: int) -> bool:
        missing, keys = self.missing(request), len(request.tokens) + drafted
        row = self._rows.get(request.agent_id)
        held = 0 if row is None else row.nbytes
        more = max(0, self._token_bytes * (-(-keys // GROWTH) + 1) * GROWTH - held)
        return self._plenty(more - spared, min(missing, CHUNK), keys)

    def _make_room(self, request: Request, drafted: int) -> None:
        """Whoever drafted longest ago, and does not run, leaves."""
        idle = [name for name, row in self._rows.items() if row.request is None]
        for name in idle:
            if len(self._rows) < MOST_ROWS and self._fits(request, drafted, 0):
                return
            self.drop(name)

    def draft(self, request: Request, count: int) -> list[int]:
        """Up to `count` tokens that follow in a turn, none behind one that ends it, and none while
        much of the turn is still to be fed. Each is read while the next one is computed."""
        self.missing(request)
        self._make_room(request, count)
        row = self._row(request)
        before = row.nbytes
        drafted = self._say(row, request, count)
        self.nbytes += row.nbytes - before
        return drafted

    def _say(self, row: DraftRow, request: Request, count: int) -> list[int]:
        chain, drafted = self._chain(row, request, count), list[int]()
        ahead = next(chain, None)
        while ahead is not None:
            token, ahead = ahead, next(chain, None)
            drafted.append(_read(token))
            if drafted[-1] in request.stop_tokens:
                break
        row.tokens += drafted[: row.fed - len(row.tokens)]
        return drafted

    def ended(self, request: Request) -> None:
        """A turn has ended; its cache stays."""
        row = self._rows.get(request.agent_id)
        if row is not None and row.request is request:
            row.request, row.agreed = None, 0

    def drop(self, agent_id: str) -> None:
        """Forget an agent."""
        row = self._rows.pop(agent_id, None)
        self.nbytes -= 0 if row is None else row.nbytes

    def clear(self) -> None:
        """Forget all agents: memory is short."""
        self._rows.clear()
        self.nbytes = 0

    def _measure(self) -> int:
        """Bytes that a cache takes for each token."""
        import mlx.core as mx

        row = self._new_row()
        mx.eval(self._model(mx.array([[1]]), cache=row.cache))
        return int(sum(layer.nbytes for layer in row.cache)) // GROWTH

    def _new_row(self) -> DraftRow:
        from mlx_lm.models.cache import make_prompt_cache

        return DraftRow(make_prompt_cache(self._model))

    def _row(self, request: Request) -> DraftRow:
        """A turn's row, which holds nothing but what the turn begins with."""
        row = self._rows.pop(request.agent_id, None) or self._new_row()
        self._rows[request.agent_id] = row
        row.missing(request)
        row.cut()
        return row

    def _chain(self, row: DraftRow, request: Request, count: int) -> "Iterator[mx.array]":
        """The next `count` tokens of a turn, [] each, lazily, each fed when the one behind it is
        asked for; none behind the end of a grammar."""
        import mlx.core as mx

        fed, before = self._feed(row, request.tokens), list[mx.array]()
        if fed is None:
            return
        for _ in range(count):
            logits = self._model(fed, cache=row.cache)[0, -1, : self._vocabulary]
            try:
                token = _draw(request, before, logits)
            except InvalidGrammar:
                # The turn says so itself, if it comes there.
                return
            if token is None:
                return
            mx.async_eval(token)  # type: ignore[no-untyped-call]
            before.append(token)
            fed = token[None, None]
            yield token

    def _feed(self, row: DraftRow, tokens: Sequence[int]) -> "mx.array | None":
        """Feed what a row lacks of a turn's `tokens`, but for the last ones: those, [1, tokens];
        None if the rest is fed in another step."""
        import mlx.core as mx

        end = len(row.tokens) + MOST_AT_ONCE
        while len(tokens) - (begin := len(row.tokens)) > CHUNK:
            if begin == end:
                return None
            self._model(mx.array([tokens[begin : begin + CHUNK]]), cache=row.cache)
            mx.eval([layer.state for layer in row.cache])
            row.tokens += tokens[begin : begin + CHUNK]
        row.tokens += tokens[begin:]
        return mx.array([tokens[begin:]])


def _read(token: "mx.array") -> int:
    return int(token.item())  # type: ignore[arg-type]


def _draw(request: Request, chain: "Sequence[mx.array]", logits: "mx.array") -> "mx.array | None":
    """The token behind those of a `chain`, [] each, lazily, of `logits` [vocab], as the turn of the
    `request` would draw it, but that a penalty counts no drafted tokens; None behind the end."""
    import mlx.core as mx

    sampling, guide = request.sampling, request.guide
    if guide is not None:
        guide.follow([*request.generated, *map(_read, chain)])
        if guide.complete or not guide.left:
            return None
        allowed = np.frombuffer(guide.allowed(), np.uint8)[: len(logits)]
        logits = mx.where(mx.array(allowed) != 0, logits, -mx.inf)
    if sampling.greedy:
        return mx.argmax(logits)
    key = draw_key(sampling, request.agent_id, request.turn, len(request.tokens) + len(chain))
    known = mx.array(request.tokens[-PENALTY_CONTEXT:])
    return draw(logits, sampling.filters, mx.random.key(key), known)
