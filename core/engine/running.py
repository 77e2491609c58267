"""The rows of all turns that run: prefilling, decoding together, or suspects alone. GPU thread.

Turns decode together with those whose KV has the same form: a step with turns of both forms is
two forwards.
"""

from collections.abc import Sequence

from kvactors.core.arena.arena import Arena
from kvactors.core.arena.compiled.compiler import StepCompiler
from kvactors.core.arena.pieces import Piece, make_trunk
from kvactors.core.cache.blocks import block_floor
from kvactors.core.cache.slabs import NO_TRUNK, Trunk
from kvactors.core.engine.hot_cache import HotCaches
from kvactors.core.engine.runner import DecodeBatch, PrefillBatch
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.request import Request

__all__ = ["Rows", "RunningBatches"]

# Steps until a first token is cached: one is launched before the one ahead of it is read.
FIRST_STEPS = 2


class RunningBatches:
    """Which batch holds which turn; `common` are those of each form. A turn that was admitted has
    no batch, and no row, before its first chunk runs; its row begins with what is `hot` of it.
    What other agents begin with too it reads where it is. Forms are those of the `loaded` model."""

    def __init__(self, loaded: LoadedModel, hot: HotCaches) -> None:
        self.prefills: dict[Request, PrefillBatch | None] = {}
        self._forms = loaded.forms
        # One of each form, which goes with the model: a trace serves whatever rows there are.
        self.steps = [StepCompiler(form.model, traced=not form.eager) for form in loaded.forms]
        self.common = [self._batch(index) for index in range(len(loaded.forms))]
        self.suspects: list[DecodeBatch] = []
        self._hot = hot

    def _batch(self, form: int) -> DecodeBatch:
        return DecodeBatch(self._forms[form], self.steps[form])

    @property
    def active(self) -> list[Request]:
        """Every turn that was admitted and has not ended."""
        return [*self.prefills, *self.answering]

    @property
    def answering(self) -> list[Request]:
        """Every turn that decodes, suspects too."""
        return [request for batch in self.decoding for request in batch.requests]

    @property
    def decoding(self) -> list[DecodeBatch]:
        """The common batches, then those of suspects."""
        return [*self.common, *self.suspects]

    def of(self, agent_id: str) -> list[Request]:
        """The turns of one agent that run."""
        return [request for request in self.active if request.agent_id == agent_id]

    def extent(self, tokens: int) -> int:
        """Tokens that a row of so many `tokens` has room for at least."""
        return self.common[0].arena.table.extent(tokens)

    def set_lean(self, *, lean: bool) -> None:
        """Whether the common batches take no spare room from now on."""
        for batch in self.common:
            batch.arena.table.lean = lean

    @property
    def arenas(self) -> set[Arena]:
        """Where all rows are."""
        batches = (*self.prefills.values(), *self.decoding)
        return {batch.arena for batch in batches if batch is not None}

    def shrink(self) -> None:
        """Give back the spare room of the decoding batches."""
        for batch in self.decoding:
            batch.arena.table.lean = True
            batch.arena.shrink()

    def batch_of(self, request: Request) -> PrefillBatch | DecodeBatch | None:
        """Where a turn's row is, if it has one."""
        if request in self.prefills:
            return self.prefills[request]
        return next((batch for batch in self.decoding if request in batch.requests), None)

    def trunk(self, request: Request) -> Trunk:
        """What the row of a turn reads where it is, or will if it has none yet: pieces that other
        agents begin with too, if they are more than a slab costs."""
        batch, form = self.batch_of(request), self._forms[request.form.index]
        if batch is not None:
            return batch.arena.trunk(batch.requests.index(request))
        cache = None if request.scoring else self._hot.get(request.agent_id)
        if not form.spec.trunks or cache is None:
            return NO_TRUNK
        used = min(cache.end, request.target)
        trunk = make_trunk(p for p in self._hot.held.common(cache.pieces) if p.end <= used)
        return trunk if trunk.end > form.policy.launch_tokens else NO_TRUNK

    def prefill_batch(self, requests: Sequence[Request], *, spare: bool = False) -> PrefillBatch:
        """The batch of the first of these, or a new one for all of them, which have one form;
        with `spare`, with room to decode."""
        batch = self.prefills[requests[0]]
        if batch is None:
            batch = PrefillBatch(self._forms[requests[0].form.index], spare=spare)
            for request in requests:
                cache = None if request.scoring else self._hot.get(request.agent_id)
                batch.add(request, cache.pieces if cache else (), self.trunk(request))
                self.prefills[request] = batch
        return batch

    def join(self, request: Request, batch: PrefillBatch) -> None:
        """A prefilled turn goes on to decode; a suspect alone."""
        target = self.common[request.form.index]
        if request.suspect:
            target = self._batch(request.form.index)
            self.suspects.append(target)
        target.join(request, batch.arena, batch.row(request))
        del self.prefills[request]
        batch.remove(request)

    def begin_alone(self, request: Request, batch: PrefillBatch) -> bool:
        """Let a turn of one token decode that by itself, if the model has states. It has none yet,
        which some models take for more than zeros, and rows together have all a state or none."""
        if request.cached or not self._forms[0].spec.recurrent:
            return False
        request.suspect, request.probation = True, max(request.probation, FIRST_STEPS)
        self.join(request, batch)
        return True

    def adopt(self, batch: PrefillBatch) -> bool:
        """Let a whole prefilled batch go on to decode without a copy, if nothing decodes."""
        target = self.common[batch.requests[0].form.index]
        if not target.idle:
            return False
        if any(r.remaining or r.suspect or r.choices or not r.generate for r in batch.requests):
            return False
        for request in batch.requests:
            del self.prefills[request]
        target.adopt(batch)
        return True

    def rejoin(self, batch: DecodeBatch) -> None:
        """A suspect that decoded alone for a while is innocent: back into the batch."""
        if batch.requests:
            request = batch.requests[0]
            request.probation -= 1
            if request.probation > 0:
                return
            row = batch.cut(request)
            request.suspect = False
            self.common[request.form.index].join(request, batch.arena, row)
        self.suspects.remove(batch)

    def remove(self, request: Request) -> None:
        """Drop a turn's row, if it has one."""
        batch = self.batch_of(request)
        if batch is not None:
            batch.remove(request)
        self.prefills.pop(request, None)
        self.suspects = [batch for batch in self.suspects if batch.requests]

    def discard(self, requests: Sequence[Request]) -> None:
        """Drop these turns, and every batch that a failed step of theirs may have spoilt: theirs,
        and one that a row came to whose turn did not."""
        gone = set(requests)
        for request in gone:
            self.prefills.pop(request, None)
        self.common = [
            self._batch(index) if gone.intersection(batch.requests) or batch.spoilt else batch
            for index, batch in enumerate(self.common)
        ]
        self.suspects = [batch for batch in self.suspects if not gone.intersection(batch.requests)]

    def check(self) -> None:
        """Prove the bookkeeping: the slots, and the lengths of every turn."""
        for arena in self.arenas:
            arena.table.check()
        for request in self.active:
            request.check()


class Rows:
    """What the rows of turns that are `running` take, and will: what they read where it is, in the
    pieces that are `hot` or were, is no part of them."""

    def __init__(self, running: RunningBatches, hot: HotCaches) -> None:
        self._running = running
        self._hot = hot

    @property
    def nbytes(self) -> int:
        """Bytes that all arenas have allocated, and those of pieces that rows read and that no
        cache has any more."""
        left = (piece for piece in self.read if not self._hot.held.holders[piece])
        return self.arena_bytes + sum(piece.nbytes for piece in left)

    @property
    def arena_bytes(self) -> int:
        """Bytes that all arenas have allocated."""
        return sum(arena.nbytes for arena in self._running.arenas)

    @property
    def read(self) -> set[Piece]:
        """The pieces that rows read where they are."""
        slabs = (slab for arena in self._running.arenas for slab in arena.table.slabs)
        return {piece for slab in slabs for piece in slab.trunk.pieces}

    @property
    def promised_bytes(self) -> int:
        """Bytes of the rows that admitted turns will still take: their own, and its copy
        among the decoding ones."""
        total = 0
        for request, batch in self._running.prefills.items():
            held = len(request.tokens) + 1 + request.longest_choice
            row = self.own_bytes(request, self._running.extent(held))
            total += row * (2 if batch is None else 1)
        return total

    def leave(self, budget: int) -> int:
        """Bytes of a `budget` that they leave to others, were nothing else there."""
        return budget - self.nbytes - self.promised_bytes

    def own_bytes(self, request: Request, tokens: int) -> int:
        """Bytes of a row of so many `tokens` of a turn, without what it reads where it is."""
        trunk = self._running.trunk(request).end
        return request.form.bytes_of(tokens) - trunk * request.form.spec.bytes_per_token

    def bytes_to_keep(self, request: Request, tokens: int) -> int:
        """Bytes that are copied when so many `tokens` of a turn's row become its agent's cache."""
        return self._copied(request, tokens, self._running.trunk(request))

    def most_to_keep(self, width: int = 1) -> int:
        """Bytes that the next turn to end copies at most, behind a step of `width` tokens: its row
        lives beside what is kept of it."""
        copies = (
            self._copied(request, len(request.tokens) + width, trunk)
            for batch in self._running.decoding
            for request, trunk in zip(batch.requests, _trunks(batch), strict=False)
        )
        return max(copies, default=0)

    def _copied(self, request: Request, tokens: int, trunk: Trunk) -> int:
        """Bytes that a turn copies whose row reads this `trunk` where it is."""
        if request.passing:
            return 0
        cache = self._hot.get(request.agent_id)
        have = cache.end if cache else 0
        copied = request.form.spec.bytes_to_keep(tokens, have)
        # Of what a row reads where it is and its own each layer is joined, before all are stacked.
        return copied * (2 if block_floor(have) < trunk.end else 1)

    def read_once(self, request: Request, rows: int) -> int:
        """Tokens of the trunk of a turn that decodes among so many `rows`, if those that have it
        read it once."""
        arena = self._running.common[request.form.index].arena
        once = all(layer.reads_once(rows) for layer in arena.layers)
        return self._running.trunk(request).end if once else 0

    def joined_bytes(self, requests: Sequence[Request]) -> int:
        """Bytes that a layer of a forward of these turns takes to read trunks and own cells as
        one."""
        trunk = self._running.trunk
        return sum(r.form.spec.joined_bytes * trunk(r).end for r in requests)


def _trunks(batch: DecodeBatch) -> list[Trunk]:
    """What each row of a batch reads where it is."""
    return [slab.trunk for slab in batch.arena.table.slabs for _ in slab.rows]
