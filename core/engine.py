"""The engine: admits turns, runs what the scheduler plans, says what came of it.

It knows no actor, no thread and no disk. The GPU actor submits requests, calls `step` again
and again while it is `busy`, and passes the events on. Owned by one thread.
"""

import time
import traceback
from collections.abc import Callable, Sequence

from kvactors.core.admission import Admission, EngineConfig
from kvactors.core.errors import TurnFailed
from kvactors.core.events import (
    Aborted,
    Event,
    ExportedKV,
    Finished,
    KVNeeded,
    Progress,
    Tokens,
)
from kvactors.core.model import LoadedModel
from kvactors.core.request import Request
from kvactors.core.runner import DecodeBatch, Decoded, PrefillBatch
from kvactors.core.scheduler import Chunk, Scheduler, SchedulerConfig
from kvactors.core.transcript import tokens_hash

__all__ = ["Engine", "EngineConfig"]

# Tokens that a suspect of a failed step decodes alone before it rejoins the batch.
PROBATION = 3


class Engine:
    """Continuous batching over agents' caches. Seed 001, 3.4; design, One turn end to end."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.loaded = loaded
        self._clock = clock
        self._admission = Admission(loaded, config, clock, self._arena_bytes)
        self._scheduler = Scheduler(
            SchedulerConfig(config.target_latency, reproducible=loaded.policy.reproducible)
        )
        self._prefills: dict[Request, PrefillBatch | None] = {}
        self._decode = DecodeBatch(loaded)
        self._suspects: list[DecodeBatch] = []
        self._events: list[Event] = []

    # -- the GPU actor's side ----------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether `step` has work: something runs, or something waits that can start."""
        if self._events or self._active() or self._admission.ready:
            return True
        return any(request.cancelled for request in self._admission.waiting)

    def submit(self, request: Request) -> None:
        """Queue a turn. Raises MemoryExceeded if it can never fit the budget."""
        self._admission.submit(request)

    def provide(self, agent_id: str, stored: Sequence[ExportedKV]) -> None:
        """The KV that the store had for an agent, in answer to KVNeeded; maybe none."""
        self._admission.provide(agent_id, stored)

    def saved(self, agent_id: str, end: int, nbytes: int, ok: bool) -> None:
        """The store wrote KV up to `end`, or failed and holds only that much."""
        self._admission.saved(agent_id, end, nbytes, ok)

    def cancel(self, agent_id: str, serial: int, error: Exception | None = None) -> None:
        """End a turn at the next step; with an error it fails and leaves no trace."""
        for request in [*self._admission.waiting, *self._active()]:
            if request.agent_id == agent_id and request.serial == serial:
                if error is not None:
                    self._abort(request, error)
                else:
                    request.cancelled = True

    def forget(self, agent_id: str) -> None:
        """Drop everything in memory of an agent; a turn that still runs of it fails."""
        for request in [*self._admission.waiting, *self._active()]:
            if request.agent_id == agent_id:
                self._abort(request, TurnFailed(f"agent {agent_id!r} was forgotten"))
        self._admission.forget(agent_id)

    def step(self) -> list[Event]:
        """Run one plan: some prefill, one decode step. Returns what happened."""
        self._end_cancelled()
        started, needed = self._admission.admit(self._active())
        self._events += [KVNeeded(agent_id) for agent_id in needed]
        for request in started:
            self._begin(request)
        prefilling = [request for request in self._prefills if request.remaining]
        plan = self._scheduler.plan(prefilling, len(self._decode))
        if plan.prefill:
            self._run_prefill(plan.prefill, plan.decode)
        self._hand_over()
        if not self._prefills:
            self._scheduler.prefill_ended()
        if len(self._decode):
            self._run_decode(self._decode)
        for batch in list(self._suspects):
            self._run_decode(batch)
            self._rejoin(batch)
        events, self._events = self._events, []
        return events

    def check(self) -> None:
        """Prove the bookkeeping: blocks, slots, and the lengths of every turn."""
        self._admission.pool.check()
        self._decode.arena.table.check()
        for request in self._active():
            request.check()

    def stats(self) -> dict[str, int]:
        """Counts and bytes, for AgentSystem.stats()."""
        memory = self._admission
        return {
            "waiting": len(memory.waiting),
            "prefilling": len(self._prefills),
            "decoding": len(self._decode) + sum(map(len, self._suspects)),
            "hot_agents": len(memory.hot),
            "hot_bytes": memory.hot.nbytes,
            "arena_bytes": self._arena_bytes(),
            "backlog_bytes": memory.backlog,
            "blocks_used": memory.pool.used_blocks,
            "blocks_total": memory.pool.total,
        }

    def _active(self) -> list[Request]:
        suspects = [request for batch in self._suspects for request in batch.requests]
        return [*self._prefills, *self._decode.requests, *suspects]

    def _arena_bytes(self) -> int:
        batches = {*self._prefills.values(), self._decode, *self._suspects} - {None}
        return sum(batch.arena.nbytes for batch in batches if batch)

    # -- running -----------------------------------------------------------------------

    def _begin(self, request: Request) -> None:
        """Prefill from what is hot of it; its row is made when its first chunk runs."""
        cache = self._admission.hot.touch(request.agent_id)
        request.cached = min(cache.end, request.target)
        self._prefills[request] = None

    def _run_prefill(self, chunks: Sequence[Chunk], decoding: bool) -> None:
        batch = self._batch_for([chunk.request for chunk in chunks])
        begin = self._clock()
        try:
            computed = batch.run(chunks)
        except Exception as error:
            self._blame(batch.requests, error)
            return
        self._scheduler.record_prefill(computed, self._clock() - begin, decoding)
        for request in batch.requests:
            total = request.target - request.kept
            done = request.cached - request.kept
            self._events.append(Progress(request.agent_id, done, total))

    def _batch_for(self, requests: Sequence[Request]) -> PrefillBatch:
        """The batch of a request, or a new one for all that start together."""
        batch = self._prefills[requests[0]]
        if batch is None:
            batch = PrefillBatch(self.loaded)
            for request in requests:
                batch.add(request, self._admission.hot.touch(request.agent_id).pieces)
                self._prefills[request] = batch
        return batch

    def _hand_over(self) -> None:
        """Requests whose prompt is cached go on to decode, or end if no answer is wanted."""
        for request in [r for r in self._prefills if not r.remaining]:
            batch = self._batch_for([request])
            request.prefilled_at = self._clock()
            if not request.generate:
                self._finish(request, "stop")
                continue
            target = self._decode
            if request.isolated:
                target = DecodeBatch(self.loaded)
                self._suspects.append(target)
            target.join(request, batch.arena, batch.row(request))
            del self._prefills[request]
            batch.remove(request)

    def _run_decode(self, batch: DecodeBatch) -> None:
        begin = self._clock()
        try:
            decoded = batch.step()
        except Exception as error:
            self._blame(batch.requests, error)
            return
        self._scheduler.record_decode(self._clock() - begin)
        for item in decoded:
            if item.request not in batch.requests:
                continue
            try:
                self._receive(item)
            except Exception as error:
                # Its own tokenizer or stop strings; the step itself went well.
                self._abort(item.request, _failure(item.request, error))

    def _receive(self, item: Decoded) -> None:
        request = item.request
        if item.error is not None:
            self._abort(request, _failure(request, item.error))
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

    def _rejoin(self, batch: DecodeBatch) -> None:
        """A suspect that decoded alone for a while is innocent: back into the batch."""
        if not batch.requests:
            self._suspects.remove(batch)
            return
        request = batch.requests[0]
        request.probation -= 1
        if request.probation <= 0:
            row = batch.cut(request)
            request.isolated = False
            self._decode.join(request, batch.arena, row)
            self._suspects.remove(batch)

    def _blame(self, requests: Sequence[Request], error: Exception) -> None:
        """A step failed. Alone, the request is guilty; together, each is tried alone.

        The step may have donated the buffers of every row, so nothing of the batch is
        reused: rows are rebuilt from their last pieces and their token ids.
        """
        suspects = list(requests)
        self._discard(suspects)
        for request in suspects:
            if len(suspects) == 1:
                self._abort(request, _failure(request, error))
            else:
                request.isolated, request.probation = True, PROBATION
                self._begin(request)

    def _discard(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._prefills.pop(request, None)
        if any(request in self._decode.requests for request in requests):
            self._decode = DecodeBatch(self.loaded)
        self._suspects = [
            batch for batch in self._suspects if not set(batch.requests) & set(requests)
        ]

    # -- ending ------------------------------------------------------------------------

    def _end_cancelled(self) -> None:
        for request in [*self._admission.waiting, *self._active()]:
            if request.cancelled:
                self._finish(request, "cancelled")

    def _finish(self, request: Request, reason: str) -> None:
        """End a turn well: its KV becomes hot, what is new of it goes to the store."""
        cache = self._admission.hot.touch(request.agent_id)
        batch = self._batch_of(request)
        if isinstance(batch, DecodeBatch):
            cache.take(batch.arena, batch.cut(request), request.cached)
        elif batch is not None:
            cache.take(batch.arena, batch.row(request), request.cached)
        cache.identity = tokens_hash(request.tokens[: cache.end])
        self._remove(request)
        self._admission.settle(request.agent_id)
        exported = self._admission.export(request)
        self._events.append(Finished(request, reason, self._clock(), exported))

    def _abort(self, request: Request, error: Exception) -> None:
        """End a turn without a trace: the agent's cache is as before it."""
        self._remove(request)
        self._admission.settle(request.agent_id)
        self._events.append(Aborted(request.agent_id, request.serial, error))

    def _batch_of(self, request: Request) -> PrefillBatch | DecodeBatch | None:
        if request in self._prefills:
            return self._prefills[request]
        decoding = (b for b in [self._decode, *self._suspects] if request in b.requests)
        return next(decoding, None)

    def _remove(self, request: Request) -> None:
        batch = self._batch_of(request)
        if batch is not None:
            batch.remove(request)
        self._prefills.pop(request, None)
        self._suspects = [batch for batch in self._suspects if batch.requests]
        self._admission.withdraw(request)


def _failure(request: Request, error: Exception) -> TurnFailed:
    failure = TurnFailed(
        f"turn {request.turn} of {request.agent_id!r} failed: {type(error).__name__}: {error}"
    )
    failure.__cause__ = error
    # The traceback stays readable from the model on; the arrays that its frames hold, and
    # this engine, are let go.
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next or error.__traceback__
    traceback.clear_frames(error.__traceback__)
    return failure
