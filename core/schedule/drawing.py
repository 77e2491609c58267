"""The draws of one step: the next token of every row, each as its own turn asks. GPU thread."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvactors.core.schedule.request import Request
from kvactors.core.schedule.sampling import draw, draw_key

if TYPE_CHECKING:
    import mlx.core as mx

__all__ = ["draw_rows"]

# mlx-lm's own context for the repetition penalty, in tokens.
PENALTY_CONTEXT = 20


def draw_rows(
    requests: Sequence[Request], logits: "mx.array", fed: "mx.array", ahead: Collection[int]
) -> "tuple[mx.array, dict[int, Exception]]":
    """Token ids [rows], lazily, of `logits` [rows, vocab] that came of the tokens `fed` [rows];
    and the errors of rows whose own sampler failed. Of the `requests` whose ids are `ahead`, what
    was fed is not among the tokens yet."""
    import mlx.core as mx

    errors: dict[int, Exception] = {}
    logits = _within_grammars(requests, logits, ahead, errors)
    chosen = mx.argmax(logits, axis=-1)
    if all(request.sampling.greedy for request in requests):
        return _told(requests, chosen, ahead), errors
    rows = []
    for row, request in enumerate(requests):
        if request.sampling.greedy or row in errors:
            rows.append(chosen[row])
            continue
        try:
            rows.append(_draw(request, logits[row], fed[row], ahead=id(request) in ahead))
        except Exception as error:
            errors[row] = error
            rows.append(chosen[row])
    drawn = mx.stack([row.astype(mx.uint32) for row in rows])
    return _told(requests, drawn, ahead), errors


def _told(requests: Sequence[Request], drawn: "mx.array", ahead: Collection[int]) -> "mx.array":
    """The tokens that were `drawn` [rows], but for rows that are told what to draw next."""
    import mlx.core as mx

    told = {}
    for row, request in enumerate(requests):
        token = request.told_at(request.decoded + (id(request) in ahead))
        if token is not None:
            told[row] = token
    if told:
        drawn[mx.array(list(told))] = mx.array(list(told.values()), dtype=drawn.dtype)
    return drawn


def _draw(request: Request, logits: "mx.array", fed: "mx.array", *, ahead: bool) -> "mx.array":
    import mlx.core as mx

    position = len(request.tokens) + ahead
    key = draw_key(request.sampling, request.agent_id, request.turn, position)
    context = None
    if request.sampling.repetition_penalty != 1.0:
        # The token in flight is fed now, and counts as one of the context.
        known = mx.array(request.tokens[-(PENALTY_CONTEXT - ahead) :])
        context = mx.concatenate([known, fed[None].astype(known.dtype)]) if ahead else known
    return draw(logits, request.sampling, key, context)


def _within_grammars(
    requests: Sequence[Request],
    logits: "mx.array",
    ahead: Collection[int],
    errors: dict[int, Exception],
) -> "mx.array":
    """The logits, without what a grammar does not allow next; rows without one as they are."""
    import mlx.core as mx

    rows, masks = [], []
    for row, request in enumerate(requests):
        try:
            mask = _mask(request, in_flight=id(request) in ahead)
        except Exception as error:
            errors[row] = error
            continue
        if mask is not None:
            rows.append(row)
            masks.append(mask[: logits.shape[-1]])
    if not rows:
        return logits
    index, allowed = mx.array(rows), mx.array(np.stack(masks)) != 0
    logits[index] = mx.where(allowed, logits[index], -mx.inf)
    return logits


def _mask(
    request: Request, *, in_flight: bool
) -> "np.ndarray[tuple[int], np.dtype[np.uint8]] | None":
    """What the row's grammar allows next, uint8 [vocab], if it has one that goes on."""
    guide = request.guide
    if guide is None:
        return None
    if not in_flight:
        guide.follow(request.generated)
    if guide.complete or not guide.left:
        return None
    return np.frombuffer(guide.allowed(), np.uint8)
