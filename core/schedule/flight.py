"""A step of decoding that was launched, and what is read of it. GPU thread."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvactors.core.schedule import scoring
from kvactors.core.schedule.drawing import Place, draw_places, told
from kvactors.core.schedule.logprobs import TokenLogprob
from kvactors.core.schedule.request import Request

if TYPE_CHECKING:
    import mlx.core as mx

__all__ = ["Decoded", "Flight", "draw_flight", "read_drafts", "read_flight"]


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a step gave one row: a token, or the error of its own sampler; `replaced`: another
    one was drawn, and fed. With its log-probability, if the turn asks for that."""

    request: Request
    token: int
    error: Exception | None = None
    replaced: bool = False
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that was launched and not read: `tokens` [rows] of `requests`, None for one that has
    left since, the errors of rows whose own sampler failed, and what is `looked` up of rows whose
    turns ask for log-probabilities."""

    tokens: "mx.array"
    requests: list[Request | None]
    errors: dict[int, Exception]
    looked: dict[int, scoring.Looked]


def draw_flight(
    places: Sequence[Place],
    requests: Sequence[Request],
    logits: "mx.array",
    fed: "mx.array",
    drawn: "mx.array | None" = None,
) -> Flight:
    """Draw the tokens of `places`, those of `requests`, in a step that was `fed` these [places] and
    gave `logits` [places, vocab], unless they were `drawn` with it. Lazily."""
    own = scoring.own_logprobs([place.request for place in places], logits)
    if drawn is None:
        tokens, errors = draw_places(places, logits, fed)
    else:
        tokens, errors = told(places, drawn), {}
    return Flight(tokens, list(requests), errors, scoring.look_up(own, tokens))


def read_flight(flight: Flight | None) -> list[Decoded]:
    """What a step gave its rows. Waits for it."""
    if flight is None:
        return []
    read: list[int] = flight.tokens.tolist()  # type: ignore[assignment]
    return [
        _take_drawn(request, token, flight.errors.get(row), flight.looked.get(row))
        for row, (request, token) in enumerate(zip(flight.requests, read, strict=True))
        if request is not None
    ]


def read_drafts(
    flight: Flight, rows: Sequence[tuple[Request, Sequence[int]]]
) -> Iterator[list[Decoded]]:
    """What a forward that checked drafts gave each of `rows`, a request and its draft: of the
    places behind its last token and behind each draft, up to the first where another token is
    drawn than was drafted. Waits for it."""
    read: list[int] = flight.tokens.tolist()  # type: ignore[assignment]
    place = 0
    for request, draft in rows:
        taken: list[Decoded] = []
        if request.guide is not None:
            # It stands behind the last place that was drawn.
            request.guide.follow(request.generated)
        for drafted in (*draft, None):
            at = place + len(taken)
            error, looked = flight.errors.get(at), flight.looked.get(at)
            taken.append(_take_drawn(request, read[at], error, looked))
            if taken[-1].error or taken[-1].token != drafted:
                break
        place += len(draft) + 1
        yield taken


def _take_drawn(
    request: Request, token: int, error: Exception | None, looked: scoring.Looked | None
) -> Decoded:
    """A `token` that was drawn for a `request`, or the one that its grammar takes in its place;
    with the `error` of its sampler, and what was `looked` up of it."""
    taken = token
    if request.guide is not None and error is None:
        try:
            taken = request.guide.take(token)
        except Exception as failure:
            error = failure
    return Decoded(request, taken, error, taken != token, scoring.read_logprob(looked, taken))
