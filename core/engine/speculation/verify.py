"""A verification: one forward that checks drafts, and what it gives. GPU thread only.

Each place is drawn with the key of its own (agent, turn, position), whatever was drafted; a draft
is accepted while it equals what is drawn, so tokens are those of plain steps. It is read before the
next forward is launched.
"""

from collections.abc import Mapping, Sequence

import mlx.core as mx

from kvactors.core.engine.runner import DecodeBatch
from kvactors.core.schedule import scoring
from kvactors.core.schedule.drawing import Place, draw_places
from kvactors.core.schedule.flight import Decoded, take_drawn
from kvactors.core.schedule.request import Request

__all__ = ["verify"]


def verify(batch: DecodeBatch, drafts: Mapping[Request, Sequence[int]]) -> list[Decoded]:
    """Feed each row of a `batch`, of which nothing is in flight, its last token and its draft, if
    it has one: the tokens that follow, one of each row and one more for each draft that was right.
    The rows hold what was accepted."""
    rows = [tuple(drafts.get(request, ())) for request in batch.requests]
    fed = [[request.tokens[-1], *row] for request, row in zip(batch.requests, rows, strict=True)]
    places = [
        Place(request, row[:number])
        for request, row in zip(batch.requests, rows, strict=True)
        for number in range(len(row) + 1)
    ]
    lengths = batch.arena.table.lengths
    logits = batch.feed(fed)
    own = scoring.own_logprobs([place.request for place in places], logits)
    tokens, errors = draw_places(places, logits, mx.array([t for row in fed for t in row]))
    looked = scoring.look_up(own, tokens)
    drawn: list[int] = tokens.tolist()  # type: ignore[assignment]
    decoded: list[Decoded] = []
    first = 0
    for row, (request, draft) in enumerate(zip(batch.requests, rows, strict=True)):
        count = 0
        for place, token in enumerate(drawn[first : first + len(draft) + 1], first):
            decoded.append(take_drawn(request, token, errors.get(place), looked.get(place)))
            count += 1
            if decoded[-1].error or decoded[-1].token != (*draft, None)[place - first]:
                break
        batch.arena.cut(row, lengths[row] + count)
        first += len(draft) + 1
    return decoded
