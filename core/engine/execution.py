"""Runs what was planned: prefill chunks, the way from prefill to decode, decode steps.

Each outcome is given as soon as it is there, so that a turn that ended has left its row before
the next batch asks for room. A step that fails is blamed on its turns. GPU thread only.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from kvactors.core.engine.failure import (
    ALONE,
    Ended,
    Failed,
    Outcome,
    beside,
    blamed,
    turn_failed,
)
from kvactors.core.engine.memory import Memory
from kvactors.core.engine.metrics import EngineMetrics
from kvactors.core.engine.preemption import Preemption
from kvactors.core.engine.prefix_sharing import PrefixSharing
from kvactors.core.engine.runner import DecodeBatch, PrefillBatch
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.events import Progress, Tokens
from kvactors.core.schedule.flight import Decoded
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.scheduler import Chunk, Plan, Scheduler
from kvactors.core.schedule.speculation.speculation import Speculation

__all__ = ["Execution"]

_T = TypeVar("_T")


class Execution:
    """Runs plans of a `loaded` model over the batches of `memory`, and tells the `scheduler` how
    long they took by `clock`; `sharing` is offered beginnings, `metrics` runs and counts the
    forwards; `speculation` gives drafts, if there is one."""

    def __init__(
        self,
        loaded: LoadedModel,
        memory: Memory,
        scheduler: Scheduler,
        sharing: PrefixSharing,
        metrics: EngineMetrics,
        clock: Callable[[], float],
        *,
        speculation: Speculation | None = None,
    ) -> None:
        self.preemption = Preemption(memory)
        self._speculation = speculation
        # The turns of the forward that runs, or ran last.
        self.forward: Sequence[Request] = ()
        self._late_checkpoints = loaded.spec.checkpointed
        self._memory = memory
        self._running = memory.running
        self._scheduler = scheduler
        self._sharing = sharing
        self._metrics = metrics
        self._clock = clock

    def begin(self, request: Request) -> None:
        """Prefill from what is hot of it; its row is made when its first chunk runs."""
        cache = self._memory.hot.touch(request.agent_id, self._clock())
        request.cached = 0 if request.scoring else min(cache.end, request.target)
        # A turn that begins again may have lost some of what it began with.
        request.kept = min(request.kept, request.cached)
        self._running.prefills[request] = None
        self._metrics.started(request)

    def run(self, plan: Plan) -> Iterator[Outcome]:
        """Some prefill, one decode step; what came of it. Raises what is fatal to the engine."""
        running = self._running
        new = yield from self._prefill(plan)
        yield from self._hand_over()
        if not running.prefills:
            self._scheduler.prefill_ended()
        # A step in flight is done after a chunk: its tokens wait for no other, which stays owed, so
        # that batches of both forms go on together. First tokens of the chunk wait for no launch.
        late = [b for b in running.common if b.in_flight and (plan.prefill or b.long_row_ends)]
        late += [b for b in running.common if b.requests and new >= {*b.requests}]
        steps: list[float] = []
        for batch in running.decoding:
            if self.preemption.make_growth(batch):
                launch = batch not in late and not self._waits(batch)
                steps += yield from self._decode(batch, launch=launch)
        if steps and not late:
            self._scheduler.record_decode(sum(steps) if all(steps) else 0.0)
        if any(request.remaining for request in running.prefills):
            # What a turn begins or ends with does not wait for the chunk of another.
            for batch in running.decoding:
                if batch.awaited:
                    yield from self._decode(batch, launch=False)
        for batch in list(running.suspects):
            yield from self._rejoin(batch)

    def _rejoin(self, batch: DecodeBatch) -> Iterator[Outcome]:
        """A suspect's step is over; one that cannot go back to the others stays alone."""
        running, suspects = self._running, list(batch.requests)
        others = [r for suspect in suspects for r in running.common[suspect.form.index].requests]
        yield from self._blamed(suspects + others, partial(running.rejoin, batch))
        for suspect in filter(running.prefills.__contains__, suspects):
            # It was blamed, and begins again.
            suspect.probation = ALONE

    def keep(self, request: Request) -> None:
        """What a turn has computed becomes its agent's hot cache."""
        cache = self._memory.hot.touch(request.agent_id, self._clock())
        self.preemption.make_room_to_keep(request)
        self.preemption.keep(request)
        cache.borrowed = False

    def leave(self, request: Request) -> None:
        """A turn has ended, well or not: its row goes."""
        self._memory.leave(request)
        if self._speculation is not None:
            self._speculation.ended(request)

    # -- prefill -----------------------------------------------------------------------

    def _prefill(self, plan: Plan) -> Generator[Outcome, None, set[Request]]:
        """Run the chunks of a plan, if any; returns whose first tokens came of them."""
        preemption, fixed = self.preemption, self._scheduler.config.reproducible
        chunks = preemption.within_memory(plan.prefill, fixed=fixed) if plan.prefill else ()
        if not chunks:
            return set()
        requests = [chunk.request for chunk in chunks]
        draw = all(map(self._scheduler.may_draw, chunks)) and preemption.can_draw(chunks)
        chunked = partial(self._run_chunks, chunks, draw=draw, decoding=plan.decode)
        decoded = yield from self._blamed(requests, chunked)
        if decoded is None:
            return set()
        for request in requests:
            done, total = min(request.cached, request.target), request.target
            yield Progress(request.agent_id, done - request.kept, total - request.kept)
        for item in decoded:
            item.request.prefilled_at = item.request.prefilled_at or self._clock()
            if item.request in self._running.prefills:
                yield from self._received(item)
        return {item.request for item in decoded}

    def _run_chunks(
        self, chunks: Sequence[Chunk], *, draw: bool, decoding: bool
    ) -> Sequence[Decoded]:
        """One forward of a batch that prefills, and what others begin with of what it computed."""
        requests = [chunk.request for chunk in chunks]
        batch = self._running.prefill_batch(requests, spare=self.preemption.can_spare(requests))
        begin = self._clock()
        decoded = self._metrics.prefill(batch, chunks, draw=draw)
        computed = len(chunks) * max(chunk.tokens for chunk in chunks)
        self._scheduler.record_prefill(computed, self._clock() - begin, decoding=decoding)
        for request in requests:
            if 0 < request.offered <= request.cached:
                # It may end in this chunk.
                self._offer_beginning(request)
            self.preemption.keep_closed(request)
        return decoded

    def _hand_over(self) -> Iterator[Outcome]:
        """Turns whose prompt is cached go on to decode, or end if no answer is wanted."""
        running = self._running

        def is_done(request: Request) -> bool:
            # One that is blamed, with another, begins again.
            return request in running.prefills and not request.remaining

        done = list(filter(is_done, running.prefills))
        for request in filter(is_done, done):
            request.prefilled_at = request.prefilled_at or self._clock()
            offered = partial(self._offer_beginning, request)
            yield from self._blamed(beside(request, running), offered)
        for request in filter(is_done, done):
            if not request.generate:
                yield Ended(request, "stop")
            elif request.choices:
                yield from self._choose(request, running.prefill_batch([request]))
            else:
                joined = [] if request.suspect else running.common[request.form.index].requests
                together = beside(request, running) + joined
                yield from self._blamed(together, partial(self._go_on, request))

    def _go_on(self, request: Request) -> None:
        """A turn whose prompt is cached begins to decode, if there is room."""
        running = self._running
        batch = running.prefill_batch([request])
        if running.begin_alone(request, batch) or running.adopt(batch):
            return
        if request.suspect or self.preemption.make_join(request):
            running.join(request, batch)

    def _choose(self, request: Request, batch: PrefillBatch) -> Iterator[Outcome]:
        """Score the next choice, one in each step; then draw."""
        if not self.preemption.make_choice(request, batch):
            return
        chosen = partial(self._metrics.choose, batch, request)
        if not (yield from self._blamed(batch.requests, chosen)):
            return
        request.first_token_at = self._clock()
        if request.stream:
            generated, logprobs = tuple(request.generated), tuple(request.logprobs)
            yield Tokens(request.agent_id, request.serial, generated, logprobs)
        yield Ended(request, "stop")

    def _offer_beginning(self, request: Request) -> None:
        """What others wait for becomes hot at once, and they may begin with all that is hot; the
        rest becomes so when the turn has ended."""
        batch = self._running.prefill_batch([request])
        cache, offered = self._memory.hot.touch(request.agent_id, self._clock()), request.offered
        late = self._late_checkpoints and request.cached > offered
        if offered > cache.end and not late and self.preemption.can_keep(request, offered):
            tokens = request.tokens[:offered]
            cache.borrowed = cache.borrowed or not cache.end
            self._memory.hot.take(request.agent_id, batch.arena, batch.row(request), tokens)
        self._sharing.offer(request)

    # -- decode ------------------------------------------------------------------------

    def _waits(self, batch: DecodeBatch) -> bool:
        """Whether what is in flight is better read before the next forward, which can then check
        drafts behind it."""
        speculation = self._drafts_for(batch) if batch.in_flight else None
        return speculation is not None and speculation.worth_waiting(batch.requests)

    def _drafts(self, batch: DecodeBatch) -> Mapping[Request, Sequence[int]]:
        """What the next forward of a batch can check, if there is room for it as things are."""
        speculation = None if batch.in_flight else self._drafts_for(batch)
        drafts = {} if speculation is None else speculation.drafts(batch.requests)
        return drafts if drafts and self.preemption.can_check(batch, drafts) else {}

    def _drafts_for(self, batch: DecodeBatch) -> Speculation | None:
        """What drafts for a batch, if its forwards can check drafts and memory is not short."""
        can = batch.arena.spec.flat and self.preemption.spares_drafts
        return self._speculation if can else None

    def _decode(self, batch: DecodeBatch, *, launch: bool) -> Generator[Outcome, None, list[float]]:
        """One step of a batch; returns the seconds that it took, if one was launched: 0 where none
        was waited for."""
        steady, rows = batch.in_flight and launch, len(batch)
        begin = self._clock()
        drafts = self._drafts(batch) if launch else {}
        launched = self._clock()
        sources = {} if self._speculation is None else self._speculation.sources
        step = partial(self._metrics.decode, batch, drafts, sources, launch=launch)
        decoded = yield from self._blamed(batch.requests, step)
        if decoded is None:
            return []
        waited = steady or drafts
        seconds = [self._clock() - begin if waited else 0.0] if launch else []
        if self._speculation is not None and (steady or drafts):
            self._speculation.took(rows, drafts, self._clock() - launched)
        for item in decoded:
            if item.request not in batch.requests:
                # It ended with a token before this one.
                continue
            yield from self._received(item)
        return seconds

    def _received(self, item: Decoded) -> Iterator[Outcome]:
        try:
            yield from self._receive(item)
        except Exception as error:
            # Its own tokenizer or stop strings; the step itself went well.
            yield Failed(item.request, turn_failed(item.request, error))

    def _receive(self, item: Decoded) -> Iterator[Outcome]:
        request = item.request
        if item.error is not None:
            yield Failed(request, turn_failed(request, item.error))
            return
        if request.decoded == 0:
            request.first_token_at = self._clock()
        request.tokens.append(item.token)
        self._metrics.generated(1)
        request.logprobs += item.logprobs
        request.cached = len(request.tokens) - 1
        if self._speculation is not None:
            self._speculation.hear(request)
        if request.stream:
            yield Tokens(request.agent_id, request.serial, (item.token,), item.logprobs)
        if request.says_stop:
            yield Ended(request, "stop")
        elif request.decoded >= request.sampling.max_tokens:
            yield Ended(request, "length")

    def _blamed(
        self, requests: Sequence[Request], work: Callable[[], _T]
    ) -> Generator[Outcome, None, _T | None]:
        """What `work` on these turns returns; None if it fails, which is blamed on them."""
        self.forward = requests
        try:
            return work()
        except Exception as error:
            failed, again = blamed(requests, error, self._running, self._metrics)
            yield from failed
            for suspect in again:
                self.begin(suspect)
            return None
