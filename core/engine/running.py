"""The rows of all turns that run: prefilling, decoding together, or suspects alone. GPU thread.

Turns decode together with those whose KV has the same form: a step with turns of both forms is
two forwards.
"""

from collections.abc import Sequence

from kvactors.core.engine.hot_cache import HotCaches
from kvactors.core.engine.runner import DecodeBatch, PrefillBatch
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.request import Request

__all__ = ["RunningBatches"]

# Steps until a first token is cached: one is launched before the one ahead of it is read.
FIRST_STEPS = 2


class RunningBatches:
    """Which batch holds which turn; `common` are those of each form. A turn that was admitted has
    no batch, and no row, before its first chunk runs; its row begins with what is `hot` of it."""

    def __init__(self, loaded: LoadedModel, hot: HotCaches) -> None:
        self.prefills: dict[Request, PrefillBatch | None] = {}
        self.common = [DecodeBatch(form) for form in loaded.forms]
        self.suspects: list[DecodeBatch] = []
        self._forms = loaded.forms
        self._hot = hot

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

    @property
    def nbytes(self) -> int:
        """Bytes that all arenas have allocated."""
        batches = {*self.prefills.values(), *self.decoding} - {None}
        return sum(batch.arena.nbytes for batch in batches if batch)

    @property
    def promised_bytes(self) -> int:
        """Bytes of the rows that admitted turns will still take: their own, and its copy
        among the decoding ones."""
        total = 0
        for request, batch in self.prefills.items():
            held = len(request.tokens) + 1 + request.longest_choice
            row = request.form.bytes_of(self.extent(held))
            total += row * (2 if batch is None else 1)
        return total

    def extent(self, tokens: int) -> int:
        """Tokens that a row of so many `tokens` has room for at least."""
        return self.common[0].arena.table.extent(tokens)

    def set_lean(self, *, lean: bool) -> None:
        """Whether the common batches take no spare room from now on."""
        for batch in self.common:
            batch.arena.table.lean = lean

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

    def prefill_batch(self, requests: Sequence[Request], *, spare: bool = False) -> PrefillBatch:
        """The batch of the first of these, or a new one for all of them, which have one form;
        with `spare`, with room to decode."""
        batch = self.prefills[requests[0]]
        if batch is None:
            batch = PrefillBatch(self._forms[requests[0].form.index])
            for request in requests:
                cache = None if request.scoring else self._hot.get(request.agent_id)
                batch.add(request, cache.pieces if cache else (), spare=spare)
                self.prefills[request] = batch
        return batch

    def join(self, request: Request, batch: PrefillBatch) -> None:
        """A prefilled turn goes on to decode; a suspect alone."""
        target = self.common[request.form.index]
        if request.suspect:
            target = DecodeBatch(self._forms[request.form.index])
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
        """Drop these turns, and every batch that a failed step of theirs may have spoilt."""
        gone = set(requests)
        for request in gone:
            self.prefills.pop(request, None)
        self.common = [
            DecodeBatch(form) if gone.intersection(batch.requests) else batch
            for form, batch in zip(self._forms, self.common, strict=True)
        ]
        self.suspects = [batch for batch in self.suspects if not gone.intersection(batch.requests)]

    def check(self) -> None:
        """Prove the bookkeeping: the slots, and the lengths of every turn."""
        for batch in self.decoding:
            batch.arena.table.check()
        for request in self.active:
            request.check()
