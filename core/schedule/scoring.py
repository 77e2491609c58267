"""Log-probabilities out of logits: of the tokens that a step draws, of a choice, of a prompt.

Each row of a step is looked at by itself: who shares it changes no bit. GPU thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvactors.core.schedule.logprobs import TokenLogprob
from kvactors.core.schedule.request import Request

if TYPE_CHECKING:
    import mlx.core as mx

__all__ = [
    "Looked",
    "Own",
    "look_up",
    "own_logprobs",
    "read_logprob",
    "score",
    "score_prompts",
    "score_taken",
]

# Places of a prompt that are looked at together. What they take in float32 is work space.
PLACES = 32


@dataclass(frozen=True, slots=True)
class Looked:
    """What is to be read of some places, lazily: the `tokens` there and their `logprobs` [places],
    the ids `top` of the likeliest and their `top_logprobs` [places, k]; among all, `rows` [places,
    vocab]."""

    rows: "mx.array"
    tokens: "mx.array"
    logprobs: "mx.array"
    top: "mx.array"
    top_logprobs: "mx.array"

    @property
    def arrays(self) -> "tuple[mx.array, ...]":
        """What is to be evaluated: [places] each, those of the likeliest [places, k]."""
        return self.tokens, self.logprobs, self.top, self.top_logprobs

    def read(self) -> tuple[TokenLogprob, ...]:
        """Of each place. Waits. Of tokens that are alike, the one with the lower id goes first."""
        columns: list[list[object]] = [array.tolist() for array in self.arrays]  # type: ignore[misc]
        return tuple(_token_logprob(*place) for place in zip(*columns, strict=True))


@dataclass(frozen=True, slots=True)
class Own:
    """The log-probabilities [1, vocab] of a `row` that asks for them, and how many of the likeliest
    it wants, `top`."""

    row: int
    logprobs: "mx.array"
    top: int


def own_logprobs(requests: Sequence[Request], logits: "mx.array") -> list[Own]:
    """Those of the rows whose `requests` ask for them, lazily; `logits` [rows, vocab] are the
    model's own, before a draw filters them."""
    tops = ((row, request.sampling.top_logprobs) for row, request in enumerate(requests))
    return [Own(row, _log_softmax(logits[row : row + 1]), k) for row, k in tops if k is not None]


def look_up(rows: Sequence[Own], tokens: "mx.array") -> dict[int, Looked]:
    """What is to be read of the `tokens` [rows] that were drawn, by row, lazily."""
    return {own.row: _look(own.logprobs, tokens[own.row : own.row + 1], own.top) for own in rows}


def score(logits: "mx.array", tokens: Sequence[int], top: int) -> list[TokenLogprob]:
    """Those of `tokens`, with the `top` likeliest, each by the logits [tokens, vocab] of
    the place before it, which may be more. Waits; few places at a time are in float32."""
    import mlx.core as mx

    scored: list[TokenLogprob] = []
    for first in range(0, len(tokens), PLACES):
        part = mx.array(list(tokens[first : first + PLACES]))
        scored += _look(_log_softmax(logits[first : first + len(part)]), part, top).read()
    return scored


def read_logprob(looked: Looked | None, token: int) -> tuple[TokenLogprob, ...]:
    """That of the one place that was looked at, if one was, where a `token` was taken: the one that
    was drawn, or another in its place. Waits."""
    if looked is None:
        return ()
    (drawn,) = looked.read()
    if drawn.token == token:
        return (drawn,)
    return (TokenLogprob(token, looked.rows[0, token].item(), drawn.top),)  # type: ignore[arg-type]


def score_taken(request: Request, logits: "mx.array", choice: Sequence[int]) -> None:
    """Note the log-probabilities of a choice's tokens, by their logits [tokens, vocab], if the
    request asks for them. Waits."""
    if (top := request.sampling.top_logprobs) is not None:
        request.logprobs += score(logits, choice, top)


def score_prompts(requests: Sequence[Request], logits: "mx.array") -> None:
    """Note the log-probabilities of the prompts' tokens behind those that were just fed, by their
    logits [rows, fed, vocab], for the `requests` that want them. Waits."""
    for row, request in enumerate(requests):
        if request.scoring:
            _score_prompt(request, logits[row, ...])


def _score_prompt(request: Request, logits: "mx.array") -> None:
    first, top = request.cached, request.sampling.top_logprobs or 0
    behind = request.tokens[first + 1 : min(first + 1 + len(logits), request.prompt)]
    del request.prompt_logprobs[first:]
    request.prompt_logprobs += score(logits, behind, top)


def _log_softmax(logits: "mx.array") -> "mx.array":
    import mlx.core as mx

    rows = logits.astype(mx.float32)
    return rows - mx.logsumexp(rows, axis=-1, keepdims=True)


def _look(rows: "mx.array", tokens: "mx.array", top: int) -> Looked:
    """Find `tokens` [places] and the `top` likeliest among the log-probabilities, `rows` [places,
    vocab]."""
    import mlx.core as mx

    top = min(top, rows.shape[-1])
    logprobs = mx.take_along_axis(rows, tokens[:, None], axis=-1)[:, 0]
    if not top:
        nothing = mx.zeros((len(tokens), 0))
        return Looked(rows, tokens, logprobs, nothing, nothing)
    ids = mx.argpartition(-rows, top - 1, axis=-1)[:, :top]
    return Looked(rows, tokens, logprobs, ids, mx.take_along_axis(rows, ids, axis=-1))


def _token_logprob(
    token: int, logprob: float, ids: list[int], logprobs: list[float]
) -> TokenLogprob:
    pairs = sorted(zip(ids, logprobs, strict=True), key=lambda pair: (-pair[1], pair[0]))
    return TokenLogprob(token, logprob, tuple(pairs))
