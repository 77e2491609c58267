"""The draws of one step: the next token of every row, each as its own turn asks. GPU thread."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvactors.core.schedule.request import Request
from kvactors.core.schedule.sampling import draw, draw_key

if TYPE_CHECKING:
    import mlx.core as mx

__all__ = ["PENALTY_CONTEXT", "Place", "draw_places"]

# mlx-lm's own context for the repetition penalty, in tokens.
PENALTY_CONTEXT = 20


@dataclass(frozen=True, slots=True)
class Place:
    """Where a token is drawn: behind the tokens of a request, the drafted ones `after` them, and
    one more if what was fed is still `ahead` of what was read."""

    request: Request
    after: tuple[int, ...] = ()
    ahead: bool = False

    @property
    def beyond(self) -> int:
        """Tokens that the request does not have yet."""
        return len(self.after) + self.ahead


def draw_places(
    places: Sequence[Place], logits: "mx.array", fed: "mx.array"
) -> "tuple[mx.array, dict[int, Exception]]":
    """Token ids [places], lazily, of `logits` [places, vocab] that came of the tokens `fed`
    [places]; and the errors of places whose own sampler failed."""
    import mlx.core as mx

    errors: dict[int, Exception] = {}
    logits = _within_grammars(places, logits, errors)
    chosen = mx.argmax(logits, axis=-1)
    if all(place.request.sampling.greedy for place in places):
        return _told(places, chosen), errors
    drawn = []
    for index, place in enumerate(places):
        if place.request.sampling.greedy or index in errors:
            drawn.append(chosen[index])
            continue
        try:
            drawn.append(_draw(place, logits[index], fed[index]))
        except Exception as error:
            errors[index] = error
            drawn.append(chosen[index])
    return _told(places, mx.stack([token.astype(mx.uint32) for token in drawn])), errors


def _told(places: Sequence[Place], drawn: "mx.array") -> "mx.array":
    """The tokens that were `drawn` [places], but for turns that are told what to draw next."""
    import mlx.core as mx

    told = {}
    for index, place in enumerate(places):
        token = place.request.told_at(place.request.decoded + place.beyond)
        if token is not None:
            told[index] = token
    if told:
        drawn[mx.array(list(told))] = mx.array(list(told.values()), dtype=drawn.dtype)
    return drawn


def _draw(place: Place, logits: "mx.array", fed: "mx.array") -> "mx.array":
    import mlx.core as mx

    request = place.request
    position = len(request.tokens) + place.beyond
    key = draw_key(request.sampling, request.agent_id, request.turn, position)
    context = None
    if request.sampling.repetition_penalty != 1.0:
        # The token in flight is fed now, and counts as one of the context.
        known = [*request.tokens[-PENALTY_CONTEXT:], *place.after]
        context = mx.array(known[-(PENALTY_CONTEXT - place.ahead) :])
        if place.ahead:
            context = mx.concatenate([context, fed[None].astype(context.dtype)])
    return draw(logits, request.sampling, key, context)


def _within_grammars(
    places: Sequence[Place], logits: "mx.array", errors: dict[int, Exception]
) -> "mx.array":
    """The logits, without what a grammar does not allow next; rows without one as they are."""
    import mlx.core as mx

    rows, masks = [], []
    for row, place in enumerate(places):
        try:
            mask = _mask(place)
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


def _mask(place: Place) -> "np.ndarray[tuple[int], np.dtype[np.uint8]] | None":
    """What the turn's grammar allows next, uint8 [vocab], if it has one that goes on."""
    guide = place.request.guide
    if guide is None:
        return None
    if not place.ahead:
        guide.follow([*place.request.generated, *place.after])
    if guide.complete or not guide.left:
        return None
    return np.frombuffer(guide.allowed(), np.uint8)
