"""The draws of one step: the next token of every row, each as its own turn asks. GPU thread."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvactors.core.schedule.request import Request
from kvactors.core.schedule.sampling import Filters, draw, draw_key

if TYPE_CHECKING:
    import mlx.core as mx

__all__ = ["PENALTY_CONTEXT", "Draws", "Place", "draw_places", "told"]

# mlx-lm's own context for the repetition penalty, in tokens.
PENALTY_CONTEXT = 20

_Form = tuple[Filters, int, bool]


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

    @property
    def masked(self) -> bool:
        """Whether some tokens may not be drawn there."""
        return self.request.guide is not None or self.too_soon

    @property
    def too_soon(self) -> bool:
        """Whether the answer may not end there yet, though no grammar says what it is."""
        least = 0 if self.request.guide else self.request.sampling.min_tokens
        return self.request.decoded + self.beyond < least


class Draws:
    """How the tokens of `places` are drawn. What shapes the graph is `form`, of each place: its
    filters, how many tokens its penalty looks back on, and whether what is fed is one of them; None
    where the likeliest is taken. What does not is `inputs`, of each: a random key [2], and the ids
    of those tokens."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.inputs: list[list[mx.array]] = [_inputs(place) for place in places]
        self.form = tuple(map(_form, places, self.inputs))

    def run(
        self,
        logits: "mx.array",
        fed: "mx.array",
        inputs: "Sequence[Sequence[mx.array]]",
        errors: dict[int, Exception] | None = None,
    ) -> "mx.array":
        """Token ids [places], lazily, of `logits` [places, vocab] that came of the tokens `fed`
        [places], with these `inputs`. Where a place's own sampler fails its error becomes one of
        `errors`, if that is given; of a place that has one already the likeliest is taken."""
        import mlx.core as mx

        chosen = mx.argmax(logits, axis=-1)
        if not any(self.form):
            return chosen
        drawn = []
        for index, form in enumerate(self.form):
            token = chosen[index]
            if form is not None and not (errors and index in errors):
                try:
                    token = _draw(form, logits[index, ...], fed[index], inputs[index])
                except Exception as error:
                    if errors is None:
                        raise
                    errors[index] = error
            drawn.append(token.astype(mx.uint32))
        return mx.stack(drawn)


def draw_places(
    places: Sequence[Place], logits: "mx.array", fed: "mx.array"
) -> "tuple[mx.array, dict[int, Exception]]":
    """Token ids [places], lazily, of `logits` [places, vocab] that came of the tokens `fed`
    [places]; and the errors of places whose own sampler failed."""
    errors: dict[int, Exception] = {}
    logits, draws = _within_grammars(places, _unended(places, logits), errors), Draws(places)
    return told(places, draws.run(logits, fed, draws.inputs, errors)), errors


def told(places: Sequence[Place], drawn: "mx.array") -> "mx.array":
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


def _inputs(place: Place) -> "list[mx.array]":
    """The key of a draw, and the ids that its penalty looks back on; nothing if it is none."""
    import mlx.core as mx

    request = place.request
    if request.sampling.greedy:
        return []
    position = len(request.tokens) + place.beyond
    key = draw_key(request.sampling, request.agent_id, request.turn, position)
    if request.sampling.repetition_penalty == 1.0:
        return [mx.random.key(key)]
    known = [*request.tokens[-PENALTY_CONTEXT:], *place.after]
    # The token in flight is fed now, and counts as one of the context.
    return [mx.random.key(key), mx.array(known[-(PENALTY_CONTEXT - place.ahead) :])]


def _form(place: Place, inputs: "Sequence[mx.array]") -> _Form | None:
    if not inputs:
        return None
    return place.request.sampling.filters, sum(array.size for array in inputs[1:]), place.ahead


def _draw(
    form: _Form, logits: "mx.array", fed: "mx.array", inputs: "Sequence[mx.array]"
) -> "mx.array":
    import mlx.core as mx

    filters, _, ahead = form
    key, *known = inputs
    context = known[0] if known else None
    if context is not None and ahead:
        context = mx.concatenate([context, fed[None].astype(context.dtype)])
    return draw(logits, filters, key, context)


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


def _unended(places: Sequence[Place], logits: "mx.array") -> "mx.array":
    """The logits [places, vocab], without an end of turn before its time."""
    import mlx.core as mx

    early = dict[frozenset[int], list[int]]()
    for row, place in enumerate(places):
        if place.too_soon:
            early.setdefault(place.request.stop_tokens, []).append(row)
    for ends, rows in early.items():
        if ids := [token for token in ends if token < logits.shape[-1]]:
            logits[mx.array(rows)[:, None], mx.array(ids)] = -mx.inf
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
