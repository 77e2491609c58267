"""The runner: the only caller of the model. Batches of rows through prefill and decode.

Decoding runs one step ahead: the graph of step n + 1 is built, on the tokens that step n is
still computing, before they are read. A row that turns out to have ended was then fed once
more; its lengths are cut and the surplus token is never read. GPU thread.
"""

from collections.abc import Mapping, Sequence
from itertools import count

import mlx.core as mx

from kvactors.core.arena.arena import Arena
from kvactors.core.arena.compiled.compiler import StepCompiler
from kvactors.core.arena.pieces import Piece
from kvactors.core.cache.slabs import NO_TRUNK, Trunk
from kvactors.core.model import mlx_limit
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule import scoring
from kvactors.core.schedule.drawing import Draws, Place
from kvactors.core.schedule.flight import Decoded, Flight, draw_flight, read_drafts, read_flight
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.sampling import draw_choice, draw_key
from kvactors.core.schedule.scheduler import Chunk

__all__ = ["SPARE_TOKENS", "DecodeBatch", "PrefillBatch", "new_arena"]

# Most tokens that a row has room for beyond its prompt.
SPARE_TOKENS = 256
# What it costs to launch a step only after the one before was read, in launches of a slab.
LATE_LAUNCHES = 4
MOST_SLABS = 3


def new_arena(loaded: LoadedModel) -> Arena:
    """An arena for this model, with the key extents that its policy asks for."""
    policy = loaded.policy
    slabs = 1 if policy.reproducible else MOST_SLABS
    return Arena(loaded.spec, policy, max_slabs=slabs, extent_step=policy.extent_step)


class PrefillBatch:
    """One or a few requests whose prompts are being cached, in an arena of their own; with `spare`,
    in rows with room to decode, so that they are not copied as soon as they do, unless they have a
    trunk."""

    def __init__(self, loaded: LoadedModel, *, spare: bool = False) -> None:
        self._model, self._spare = loaded.model, spare
        self.arena = new_arena(loaded)
        # What these rows grow by is known.
        self.arena.table.lean = True
        self.requests: list[Request] = []

    def add(self, request: Request, pieces: Sequence[Piece], trunk: Trunk = NO_TRUNK) -> None:
        """Give a request a row, with its cached `pieces` in it, of which a `trunk` may stay where
        it is."""
        more = request.longest_choice
        # Behind a trunk a row has little of its own, and all that join it get as much room.
        if self._spare and request.generate and not request.choices and not trunk.end:
            more = min(request.sampling.max_tokens, SPARE_TOKENS)
        have = pieces[-1].end if pieces else 0
        assert request.cached <= have, f"{request.cached} tokens are to be there, {have} are"
        # The last token may be fed here; and a piece may hold more, which is fed again.
        held = max(len(request.tokens), have)
        row = self.arena.add_row(request.cached, held, spare=more, trunk=trunk)
        for piece in pieces:
            self.arena.load(row, piece)
        self.requests.insert(row, request)

    def row(self, request: Request) -> int:
        """The request's row in the arena."""
        return self.requests.index(request)

    def run(self, chunks: Sequence[Chunk], *, draw: bool = False) -> list[Decoded]:
        """Cache the next tokens of every request, padded to the longest chunk. Where these are the
        rest of all prompts they can `draw`: the last tokens are fed too, and the next ones are
        returned."""
        sizes = {id(chunk.request): chunk.tokens + draw for chunk in chunks}
        width = max(sizes.values())
        rows = []
        for request in self.requests:
            new = request.tokens[request.cached : request.cached + sizes[id(request)]]
            rows.append(new + [new[-1]] * (width - len(new)))
        fed = mx.array(rows)
        logits = self.arena.forward(self._model, fed)
        scoring.score_prompts(self.requests, logits)
        flight = None
        if draw:
            last = mx.array([sizes[id(request)] - 1 for request in self.requests])
            each, places = mx.arange(len(rows)), list(map(Place, self.requests))
            flight = draw_flight(places, self.requests, logits[each, last], fed[each, last])
        self.arena.evaluate()
        for row, request in enumerate(self.requests):
            request.cached += sizes[id(request)]
            self.arena.cut(row, request.cached)
            request.check()
        mlx_limit.relieve_cache()
        return read_flight(flight)

    def score_choice(self, request: Request) -> None:
        """Total log-probability of the request's next choice; its row stays as it is."""
        choice = request.choices[len(request.scores)]
        logits = self._feed(request, choice)
        row = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        score = mx.take_along_axis(row, mx.array(choice)[:, None], axis=-1).sum()
        request.scores = (*request.scores, float(score.item()))  # type: ignore[arg-type]
        self._cut()

    def take_choice(self, request: Request) -> None:
        """Draw one of the scored choices: it becomes the request's answer."""
        key = draw_key(request.sampling, request.agent_id, request.turn, len(request.tokens))
        choice = request.choices[draw_choice(request.scores, request.sampling, key)]
        scoring.score_taken(request, self._feed(request, choice), choice)
        self.arena.evaluate()
        request.tokens += choice
        request.cached += len(choice)
        self._cut()

    def _feed(self, request: Request, choice: Sequence[int]) -> mx.array:
        """Feed a choice behind the last token of the prompt: float32 logits [tokens, vocab].

        Other rows of the batch are fed as many of their own last token, and cut afterwards.
        """
        rows = [[other.tokens[-1]] * len(choice) for other in self.requests]
        rows[self.row(request)][1:] = choice[:-1]
        logits = self.arena.forward(self._model, mx.array(rows))
        return logits[self.row(request), ...].astype(mx.float32)

    def _cut(self) -> None:
        for row, request in enumerate(self.requests):
            self.arena.cut(row, request.cached)

    def remove(self, request: Request) -> None:
        """Drop a request's row."""
        _leave(self.arena, self.requests, request)


class DecodeBatch:
    """The rows that decode together, one step ahead of what was read; `steps` takes their steps."""

    def __init__(self, loaded: LoadedModel, steps: StepCompiler) -> None:
        self._model = loaded.model
        self._steps = steps
        self.arena = new_arena(loaded)
        self.requests: list[Request] = []
        self._flight: Flight | None = None

    def __len__(self) -> int:
        return len(self.requests)

    def join(self, request: Request, source: Arena, row: int) -> None:
        """Take over the `row` of a `request` from `source`; its last token is fed next."""
        self.requests.insert(self.arena.take(source, row), request)

    def adopt(self, batch: PrefillBatch) -> None:
        """Take over all rows of a batch, without a copy; this one must be empty."""
        assert self.idle
        self.arena, self.requests = batch.arena, list(batch.requests)
        self.arena.table.lean = False
        batch.requests.clear()

    @property
    def spoilt(self) -> bool:
        """Whether its rows are not those of its turns."""
        return len(self.arena.table.lengths) != len(self.requests)

    @property
    def idle(self) -> bool:
        """Whether it has no row, and no step in flight."""
        return not self.requests and not self.in_flight

    @property
    def in_flight(self) -> bool:
        """Whether a step was launched that was not read."""
        return self._flight is not None

    @property
    def long_row_ends(self) -> bool:
        """Whether a row that has its last token in flight is so long that feeding it once more
        would cost more than to launch the next step only when that token was read."""
        longest = LATE_LAUNCHES * self.arena.policy.launch_tokens
        long = (r for r in self.requests if r.cached > longest)
        return any(self._last_in_flight(request, self._flight) for request in long)

    @property
    def awaited(self) -> bool:
        """Whether the first token of a turn is in flight, or its last."""
        flight = self._flight
        turns = () if flight is None else flight.requests
        return any(r and (not r.decoded or self._last_in_flight(r, flight)) for r in turns)

    def step(self, *, launch: bool) -> list[Decoded]:
        """Launch the next step, if asked to, then read the one before it.

        What a grammar allows next depends on what is read: with one, a step is drawn only then,
        and its masks are made while its forward runs.
        """
        flight, self._flight = self._flight, None
        more = any(not self._last_in_flight(request, flight) for request in self.requests)
        if not (launch and more):
            return read_flight(flight)
        ahead = set(map(id, flight.requests)) if flight else set()
        fed, places = self._inputs(flight), [Place(r, ahead=id(r) in ahead) for r in self.requests]
        draws = None if any(place.masked for place in places) else Draws(places)
        logits, drawn = self._steps.step(self.arena, fed, draws)
        if not any(request.guide for request in self.requests):
            self._draw(places, fed, logits, drawn)
            return read_flight(flight)
        mx.async_eval(logits)  # type: ignore[no-untyped-call]
        decoded = read_flight(flight)
        self._draw(places, fed, logits)
        for item in decoded:
            if item.replaced:
                self._take_back(item.request)
        return decoded

    def verify(self, drafts: Mapping[Request, Sequence[int]]) -> list[Decoded]:
        """Feed each row its last token and its draft, if it has one, while nothing is in flight:
        the tokens that follow, one of each row and one more for each draft that was right.

        Each place is drawn with the key of its own (agent, turn, position), whatever was drafted;
        a draft is accepted while it equals what is drawn, so tokens are those of plain steps. It is
        read before the next forward is launched. The rows hold what was accepted.
        """
        assert not self.in_flight
        rows = [(request, tuple(drafts.get(request, ()))) for request in self.requests]
        places = [Place(request, row[:n]) for request, row in rows for n in range(len(row) + 1)]
        fed = mx.array([token for request, row in rows for token in (request.tokens[-1], *row)])
        lengths = self.arena.table.lengths
        logits = self.arena.forward_flat(self._model, fed, [len(row) + 1 for _, row in rows])
        if any(request.guide for request in self.requests):
            # Their masks are made while it runs.
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
        flight = draw_flight(places, (), logits, fed)
        decoded: list[Decoded] = []
        for row, accepted in enumerate(read_drafts(flight, rows)):
            self.arena.cut(row, lengths[row] + len(accepted))
            decoded += accepted
        return decoded

    def cut(self, request: Request) -> int:
        """Cut the row to what its request holds; returns the row."""
        row = self.requests.index(request)
        length = min(request.cached, self.arena.table.lengths[row])
        self.arena.cut(row, length)
        return row

    def remove(self, request: Request) -> None:
        """Drop a request's row; what is in flight for it is not read."""
        _leave(self.arena, self.requests, request)
        if self._flight is not None:
            flying = self._flight.requests
            flying[:] = [None if other is request else other for other in flying]
            if not any(flying):
                self._flight = None

    def _last_in_flight(self, request: Request, flight: Flight | None) -> bool:
        ahead = flight is not None and request in flight.requests
        return request.decoded + ahead >= request.sampling.max_tokens

    def _draw(
        self,
        places: Sequence[Place],
        fed: mx.array,
        logits: mx.array,
        drawn: mx.array | None = None,
    ) -> None:
        """Launch the step of `places`; see `draw_flight`."""
        self._flight = flight = draw_flight(places, self.requests, logits, fed, drawn)
        mx.async_eval(flight.tokens, [looked.arrays for looked in flight.looked.values()])  # type: ignore[no-untyped-call]

    def _take_back(self, request: Request) -> None:
        """The row was fed a token that its turn did not take: it is fed another one next."""
        assert self._flight is not None
        row = self.requests.index(request)
        self.arena.cut(row, self.arena.table.lengths[row] - 1)
        self._flight.requests[row] = None

    def _inputs(self, flight: Flight | None) -> mx.array:
        """Token ids [rows] to feed: what is still in flight, and the last of newcomers."""
        if flight is None:
            return mx.array([request.tokens[-1] for request in self.requests])
        if flight.requests == self.requests:
            return flight.tokens
        place = {id(request): index for index, request in enumerate(flight.requests) if request}
        fresh = [request.tokens[-1] for request in self.requests if id(request) not in place]
        behind = count(len(flight.requests))
        index = [place[id(r)] if id(r) in place else next(behind) for r in self.requests]
        known = mx.array(fresh, dtype=flight.tokens.dtype)
        return mx.concatenate([flight.tokens, known])[mx.array(index)]


def _leave(arena: Arena, requests: list[Request], request: Request) -> None:
    row = requests.index(request)
    moved = arena.leave(row)
    requests[row] = requests[moved]
    del requests[moved]
