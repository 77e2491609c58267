"""The engine: admits turns, runs what the scheduler plans, says what came of it.

It knows no actor, no thread and no disk. The GPU actor submits requests, calls `step` again
and again while it is `busy`, and passes the events on. Owned by one thread.
"""

import time
from collections.abc import Callable, Sequence

from kvactors.core import status
from kvactors.core.admission import Admission, EngineConfig
from kvactors.core.errors import TurnFailed
from kvactors.core.events import Aborted, Event, ExportedKV, Finished, KVNeeded, Progress, Tokens
from kvactors.core.failure import PROBATION, is_fatal, suspect, turn_failed
from kvactors.core.memory import Memory
from kvactors.core.meter import Meter
from kvactors.core.model import LoadedModel
from kvactors.core.pieces import Piece
from kvactors.core.pressure import Pressure
from kvactors.core.request import Request
from kvactors.core.rows import Rows
from kvactors.core.runner import DecodeBatch, Decoded, PrefillBatch
from kvactors.core.scheduler import Chunk, Scheduler, SchedulerConfig
from kvactors.core.trace import Tracer
from kvactors.core.traffic import Traffic

__all__ = ["Engine", "EngineConfig"]


class Engine:
    """Continuous batching over agents' caches. Seed 001, 3.4; design, One turn end to end."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        clock: Callable[[], float] = time.perf_counter,
        tracer: Tracer | None = None,
    ) -> None:
        self.loaded = loaded
        self._clock = clock
        tracer = tracer or Tracer()
        self._meter = Meter(tracer)
        self._rows = Rows(loaded, self._pieces_of)
        self._memory = Memory(
            loaded, config.memory_budget, config.eviction, clock, self._rows, tracer
        )
        self._traffic = Traffic(loaded, self._memory, clock, stored=config.stored)
        self._admission = Admission(config, self._memory, self._traffic, clock)
        self._pressure = Pressure(self._rows, self._memory, self._admission.put_back)
        fixed = loaded.policy.reproducible or loaded.spec.fixed_chunks
        checkpointed = loaded.spec.checkpointed
        self._scheduler = Scheduler(
            SchedulerConfig(config.target_latency, reproducible=fixed, checkpointed=checkpointed)
        )
        self._events: list[Event] = []
        self._cancelled: list[Request] = []
        self._forward: Sequence[Request] = ()

    # -- the GPU actor's side ----------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether `step` has work: something runs, or something waits that can start."""
        return bool(self._events or self._cancelled or self._rows.active or self._admission.ready)

    def submit(self, request: Request) -> None:
        """Queue a turn. Raises MemoryExceeded if it can never fit the budget, AdmissionFull if
        too many wait."""
        request.in_float = self.loaded.in_float(request.prompt)
        self._admission.submit(request)

    def prefetch(self, agent_id: str, tokens: list[int]) -> None:
        """Read an agent's KV ahead of its next turn, if there is room."""
        if self._traffic.prefetch(agent_id, tokens):
            self._admission.promise(agent_id)
            self._events.append(KVNeeded(agent_id))

    def fork(self, parent: str, child: str) -> None:
        """Let a new agent begin with another one's cache, uncopied."""
        self._traffic.fork(parent, child)

    def provide(self, agent_id: str, stored: Sequence[ExportedKV]) -> None:
        """The KV that the store had for an agent, in answer to KVNeeded; maybe none."""
        waiting = self._admission.waiting.of(agent_id)
        self._traffic.provide(agent_id, stored, waiting[0] if waiting else None)
        self._admission.retry()

    def saved(self, agent_id: str, nbytes: int, limit: int | None = None) -> None:
        """So much KV no longer waits for the store, which has no more than `limit` tokens of it."""
        self._traffic.saved(agent_id, nbytes, limit)
        self._admission.retry()

    def cancel(self, agent_id: str, serial: int, error: Exception | None = None) -> None:
        """End a turn at the next step; with an error it fails and leaves no trace."""
        for request in self._turns_of(agent_id):
            if request.serial == serial and error is not None:
                self._abort(request, error)
            elif request.serial == serial:
                self._cancelled.append(request)

    def forget(self, agent_id: str) -> None:
        """Drop everything in memory of an agent; a turn that still runs of it fails."""
        for request in self._turns_of(agent_id):
            self._abort(request, TurnFailed(f"agent {agent_id!r} was forgotten"))
        self._traffic.forget(agent_id)
        self._admission.retry()

    def _turns_of(self, agent_id: str) -> list[Request]:
        running = [request for request in self._rows.active if request.agent_id == agent_id]
        return [*self._admission.waiting.of(agent_id), *running]

    def abandon(self) -> tuple[list[Event], list[Request], int]:
        """After a fatal error: events that nobody saw yet, the turns that another engine is to
        `resume`, and the bytes that wait to be written. This engine is not used again."""
        self._events += suspect(self._forward)
        guilty = {event.serial for event in self._events if isinstance(event, Aborted)}
        turns = [*self._rows.active, *self._admission.waiting]
        left = [request for request in turns if request.serial not in guilty]
        return self._events, left, self._memory.backlog

    def resume(self, turns: Sequence[Request], backlog: int) -> None:
        """Take over what another engine abandoned: nothing is in memory of it."""
        self._memory.resume(backlog)
        self._admission.resume(turns)

    def release(self) -> None:
        """Nothing runs any more, nor will."""
        self._memory.release()

    def step(self) -> list[Event]:
        """Run one plan: some prefill, one decode step. Returns what happened."""
        self._end_cancelled()
        rows = self._rows
        started, needed = self._admission.admit(rows.active)
        self._events += [KVNeeded(agent_id) for agent_id in needed]
        for request in started:
            self._begin(request)
        rows.set_lean(self._memory.tight)
        plan = self._scheduler.plan([r for r in rows.prefills if r.remaining], rows.answering)
        if plan.prefill:
            self._run_prefill(plan.prefill, plan.decode)
        self._hand_over()
        if not rows.prefills:
            self._scheduler.prefill_ended()
        # A step that was in flight is done after a chunk: its tokens do not wait for another one,
        # which stays owed, so that batches of both forms go on together.
        done = [b for b in rows.common if b.in_flight and (plan.prefill or b.long_row_ends)]
        ready = filter(self._pressure.make_growth, rows.decoding)
        seconds = sum(self._run_decode(batch, launch=batch not in done) for batch in ready)
        if seconds and not done:
            self._scheduler.record_decode(seconds)
        for batch in list(rows.suspects):
            rows.rejoin(batch)
        events, self._events = self._events, []
        return events

    @property
    def watched(self) -> bool:
        """Whether tokens are read as they come; not while a turn waits or memory is short."""
        watched = any(request.stream for request in self._rows.answering)
        return watched and not (self._admission.waiting or self._memory.short)

    def check(self) -> None:
        """Prove the bookkeeping: blocks, hot caches, slots, and the lengths of every turn."""
        self._memory.pool.check()
        self._memory.hot.check()
        self._rows.check()
        self._admission.waiting.check()

    @property
    def in_memory(self) -> frozenset[str]:
        """The agents whose KV is in memory, in whole or in part: active or hot."""
        return frozenset(self._memory.hot).union(r.agent_id for r in self._rows.active)

    def stats(self) -> dict[str, int]:
        """Counts, bytes and tokens, for AgentSystem.stats()."""
        return {
            **status.count(self._rows, self._memory, len(self._admission.waiting), self.in_memory),
            "preemptions": self._pressure.preemptions,
            **self._meter.counts,
            **self._traffic.counts,
        }

    def turns(self) -> tuple[status.RunningTurn, ...]:
        """The turns that run and some that wait, and how far they are."""
        return status.turns(self._rows, self._admission.waiting, self._traffic.asked)

    @property
    def hot_bytes(self) -> int:
        """Bytes of KV in memory of agents that do not run, and of those running began with."""
        return self._memory.hot.nbytes

    # -- running -----------------------------------------------------------------------

    def _pieces_of(self, request: Request) -> Sequence[Piece]:
        return self._memory.hot.touch(request.agent_id, self._clock()).pieces

    def _begin(self, request: Request) -> None:
        """Prefill from what is hot of it; its row is made when its first chunk runs."""
        cache = self._memory.hot.touch(request.agent_id, self._clock())
        request.cached = min(cache.end, request.target)
        # A turn that begins again may have lost some of what it began with.
        request.kept = min(request.kept, request.cached)
        self._rows.prefills[request] = None
        self._meter.started(request)

    def _run_prefill(self, planned: Sequence[Chunk], decoding: bool) -> None:
        chunks = self._pressure.within_memory(planned, fixed=self._scheduler.config.reproducible)
        if not chunks:
            return
        requests = [chunk.request for chunk in chunks]
        batch = self._rows.prefill_batch(requests, self._pressure.can_spare(requests))
        begin, self._forward = self._clock(), batch.requests
        try:
            computed = self._meter.prefill(batch, chunks)
        except Exception as error:
            self._blame(batch.requests, error)
            return
        self._scheduler.record_prefill(computed, self._clock() - begin, decoding)
        for request in batch.requests:
            done, total = request.cached - request.kept, request.target - request.kept
            self._events.append(Progress(request.agent_id, done, total))
            if request.cached == request.shared:
                self._offer_beginning(request, batch)
            self._pressure.keep_closed(request)

    def _hand_over(self) -> None:
        """Requests whose prompt is cached go on to decode, or end if no answer is wanted."""
        done = [request for request in self._rows.prefills if not request.remaining]
        for request in done:
            request.prefilled_at = request.prefilled_at or self._clock()
            self._offer_beginning(request, self._rows.prefill_batch([request]))
        for request in done:
            if request not in self._rows.prefills:
                continue
            batch = self._rows.prefill_batch([request])
            if not request.generate:
                self._finish(request, "stop")
            elif request.choices:
                self._choose(request, batch)
            elif self._rows.begin_alone(request, batch) or self._rows.adopt(batch):
                continue
            elif request.isolated or self._pressure.make_join(request):
                self._rows.join(request, batch)

    def _choose(self, request: Request, batch: PrefillBatch) -> None:
        """Score the next choice, one in each step; then draw."""
        self._forward = batch.requests
        try:
            if not self._meter.choose(batch, request):
                return
        except Exception as error:
            self._blame(batch.requests, error)
            return
        request.first_token_at = self._clock()
        if request.stream:
            self._events.append(Tokens(request.agent_id, request.serial, tuple(request.generated)))
        self._finish(request, "stop")

    def _offer_beginning(self, request: Request, batch: PrefillBatch) -> None:
        """The system prompt's KV becomes hot at once: agents that share it wait for it."""
        cache = self._memory.hot.touch(request.agent_id, self._clock())
        late = self.loaded.spec.checkpointed and request.cached > request.shared
        if request.shared > cache.end and not late:
            beginning = request.tokens[: request.shared]
            self._memory.hot.take(request.agent_id, batch.arena, batch.row(request), beginning)
            cache.borrowed = True
        self._traffic.offer(request)

    def _run_decode(self, batch: DecodeBatch, *, launch: bool) -> float:
        """One step of a batch; the seconds that it took, 0 if it failed or none was launched."""
        begin, self._forward = self._clock(), batch.requests
        try:
            decoded = self._meter.decode(batch, launch=launch)
        except Exception as error:
            self._blame(batch.requests, error)
            return 0.0
        seconds = self._clock() - begin if launch else 0.0
        for item in decoded:
            try:
                self._receive(item)
            except Exception as error:
                # Its own tokenizer or stop strings; the step itself went well.
                self._abort(item.request, turn_failed(item.request, error))
        return seconds

    def _receive(self, item: Decoded) -> None:
        request = item.request
        if item.error is not None:
            self._abort(request, turn_failed(request, item.error))
            return
        if request.decoded == 0:
            request.first_token_at = self._clock()
        request.tokens.append(item.token)
        request.cached = len(request.tokens) - 1
        if request.stream:
            self._events.append(Tokens(request.agent_id, request.serial, (item.token,)))
        if item.token in request.stop_tokens or request.matcher.matches(request.generated):
            self._finish(request, "stop")
        elif request.decoded >= request.sampling.max_tokens:
            self._finish(request, "length")

    def _blame(self, requests: Sequence[Request], error: Exception) -> None:
        """A step failed. Alone, the request is guilty; together, each is tried alone.

        The step may have donated the buffers of every row, so nothing of the batch is
        reused: rows are rebuilt from their last pieces and their token ids.
        """
        if is_fatal(error):
            raise error
        suspects = list(requests)
        self._meter.failed(suspects, error)
        self._rows.discard(suspects)
        for request in suspects:
            if len(suspects) == 1:
                self._abort(request, turn_failed(request, error))
            else:
                request.isolated, request.probation = True, PROBATION
                self._begin(request)

    # -- ending ------------------------------------------------------------------------

    def _end_cancelled(self) -> None:
        cancelled, self._cancelled = self._cancelled, []
        for request in cancelled:
            if request in self._admission.waiting:
                self._admission.note_cache(request)
                self._finish(request, "cancelled")
            elif request in self._rows.active:
                self._finish(request, "cancelled")

    def _finish(self, request: Request, reason: str) -> None:
        """End a turn well: its KV becomes hot, what is new of it goes to the store."""
        exported: tuple[ExportedKV, ...] = ()
        if request.passing:
            self._remove(request)
        else:
            cache = self._memory.hot.touch(request.agent_id, self._clock())
            self._pressure.make_room_to_keep(request)
            self._pressure.keep(request)
            cache.borrowed = False
            self._remove(request)
            exported = self._traffic.export(request)
        self._events.append(Finished(request, reason, self._clock(), exported))

    def _abort(self, request: Request, error: Exception) -> None:
        """End a turn without a trace: the agent's cache is as before it."""
        self._remove(request)
        self._events.append(Aborted(request.agent_id, request.serial, error))

    def _remove(self, request: Request) -> None:
        self._rows.remove(request)
        self._admission.withdraw(request)
        self._memory.settle(request.agent_id)
        self._admission.ended()
