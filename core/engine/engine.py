"""The engine: admits turns, plans, runs, and says what came of it.

It knows no actor, no thread and no disk. The GPU actor submits requests, calls `step` again
and again while it is `busy`, and passes the events on. Owned by one thread.
"""

import time
from collections.abc import Callable, Sequence

from kvactors.core.cache.segment import Segment
from kvactors.core.engine import status
from kvactors.core.engine.admission import Admission, EngineConfig
from kvactors.core.engine.execution import Execution
from kvactors.core.engine.failure import (
    Ended,
    Failed,
    Outcome,
    is_fatal,
    make_suspects,
    turn_failed,
)
from kvactors.core.engine.kv_transfer import KVTransfer
from kvactors.core.engine.memory import Memory
from kvactors.core.engine.metrics import EngineMetrics
from kvactors.core.engine.prefix_sharing import PrefixSharing
from kvactors.core.errors import TurnFailed
from kvactors.core.model.load import LoadedModel, stated_positions
from kvactors.core.schedule.events import Aborted, Begun, Event, Finished, KVNeeded
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.scheduler import Scheduler, SchedulerConfig
from kvactors.core.schedule.speculation.chain import Chains
from kvactors.core.schedule.speculation.speculation import Speculation
from kvactors.core.trace import Tracer

__all__ = ["Engine", "EngineConfig"]


class Engine:
    """Continuous batching over agents' caches ([paper, 3.4], [design, One turn end to end]).

    Args:
        loaded: the model, in all its forms.
        config: the bounds.
        clock: seconds; another one repeats a run.
        tracer: told of turns and steps.

    `memory` is the one owner of what is held, what is promised and what waits to be written;
    `execution` runs what is planned.
    """

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
        self.memory = Memory(
            loaded,
            config.memory_budget,
            config.eviction,
            clock,
            tracer,
            share=config.share,
        )
        self._metrics = EngineMetrics(tracer)
        self._sharing = PrefixSharing(loaded, self.memory.hot)
        self._transfer = KVTransfer(loaded, self.memory, clock, stored=config.stored)
        self._admission = Admission(config, self.memory, self._transfer, self._sharing, clock)
        self._scheduler = Scheduler(
            SchedulerConfig(
                config.target_latency,
                longest_chunk=loaded.longest_chunk,
                reproducible=loaded.fixed_chunks,
                checkpointed=loaded.spec.checkpointed,
            )
        )
        self.execution = Execution(
            loaded,
            self.memory,
            self._scheduler,
            self._sharing,
            self._metrics,
            clock,
            speculation=_speculation(loaded, config, self.memory),
        )
        self._events: list[Event] = []
        self._cancelled: list[Request] = []

    @property
    def busy(self) -> bool:
        """Whether `step` has work: something runs, or something waits that can start."""
        running = self.memory.running.active
        return bool(self._events or self._cancelled or running or self._admission.ready)

    def step(self, tell: Callable[[Event], object] | None = None) -> list[Event]:
        """Run one plan: some prefill, one decode step. Returns what happened. `tell` hears before
        the plan runs who was admitted, and what is to be read from the store beside it."""
        self._end_cancelled()
        running = self.memory.running
        for admitted in self._admission.admit(running.active):
            if isinstance(admitted, KVNeeded):
                self._events.append(admitted)
            else:
                self.execution.begin(admitted)
                self._events += _begun(admitted)
        while tell is not None and self._events:
            tell(self._events.pop(0))
        running.set_lean(lean=self.memory.tight)
        self.execution.preemption.awaited = self._admission.blocked
        prefilling = [request for request in running.prefills if request.remaining]
        plan = self._scheduler.plan(prefilling, running.answering)
        for outcome in self.execution.run(plan):
            self._reply(outcome)
        self._queue_again()
        events, self._events = self._events, []
        return events

    def submit(self, request: Request) -> None:
        """Queue a turn. Raises MemoryExceeded if it can never fit the budget, AdmissionFull if
        too many wait."""
        request.form = self.loaded.form_of(request.prompt)
        self._admission.submit(request)

    def prefetch(self, agent_id: str, tokens: list[int]) -> None:
        """Read an agent's KV ahead of its next turn, if there is room."""
        if self._transfer.prefetch(agent_id, tokens):
            self._admission.promise(agent_id)
            self._events.append(KVNeeded(agent_id))

    def provide(self, agent_id: str, stored: Sequence[Segment]) -> None:
        """The KV that the store had for an agent, in answer to KVNeeded; maybe none."""
        waiting = self._admission.waiting.of(agent_id)
        self._transfer.provide(agent_id, stored, waiting[0] if waiting else None)
        self._admission.promise(agent_id)
        self._admission.retry()

    def saved(self, agent_id: str, nbytes: int, limit: int | None = None) -> None:
        """So many bytes of KV of `agent_id`, `nbytes`, no longer wait for the store, which has no
        more than `limit` tokens of it."""
        self._transfer.saved(agent_id, nbytes, limit)
        self._admission.retry()

    def cancel(self, agent_id: str, serial: int | None, error: Exception | None = None) -> None:
        """End the turn `serial` of `agent_id` at the next step, every turn of it if that is None;
        with an `error` it fails at once and leaves no trace."""
        turns = [*self._admission.waiting.of(agent_id), *self.memory.running.of(agent_id)]
        for request in turns:
            if serial in (None, request.serial) and error is not None:
                self._abort(request, error)
            elif serial in (None, request.serial):
                request.cancelled = True
                self._cancelled.append(request)

    def forget(self, agent_id: str) -> None:
        """Drop everything in memory of an agent; a turn that still runs of it fails."""
        self.cancel(agent_id, None, TurnFailed(f"agent {agent_id!r} was forgotten"))
        self._transfer.withdraw(agent_id)
        self.memory.hot.drop(agent_id)
        self.memory.drafts.drop(agent_id)
        self._admission.retry()

    def abandon(self) -> tuple[list[Event], list[Request], int]:
        """After a fatal error: events that nobody saw yet, the turns that another engine is to
        `resume`, and the bytes that wait to be written. This engine is not used again."""
        self._queue_again()
        active = self.memory.running.active
        for request in active:
            # Those that only waited have not begun.
            request.preempted += 1
        self._events += make_suspects([r for r in self.execution.forward if r in active])
        guilty = {event.serial for event in self._events if isinstance(event, Aborted)}
        turns = [*active, *self._admission.empty()]
        left = [request for request in turns if request.serial not in guilty]
        return self._events, left, self.memory.backlog

    def resume(self, turns: Sequence[Request], backlog: int) -> None:
        """Take over what another engine abandoned: nothing is in memory of it."""
        self.memory.resume(backlog)
        for request in turns:
            request.form = self.loaded.form_of(request.prompt)
        self._cancelled += [request for request in turns if request.cancelled]
        self._admission.resume(turns)

    @property
    def streaming(self) -> bool:
        """Whether tokens are read as they come; not while a turn waits or memory is short."""
        streamed = any(request.stream for request in self.memory.running.answering)
        return streamed and not (self._admission.waiting or self.memory.short)

    def check(self) -> None:
        """Prove the bookkeeping: all that memory accounts for, and the order of who waits."""
        self.memory.check()
        self._admission.waiting.check()

    def stats(self) -> dict[str, int]:
        """Counts, bytes and tokens, for AgentSystem.stats()."""
        return {
            **status.count(self.memory, len(self._admission.waiting)),
            "preemptions": self.execution.preemption.preemptions,
            **self._metrics.counts,
            **self._admission.counts,
            "shared_tokens": self._sharing.shared_tokens,
        }

    def turns(self) -> tuple[status.RunningTurn, ...]:
        """The turns that run and some that wait, and how far they are."""
        reading = self._transfer.reading
        return status.turns(self.memory.running, self._admission.waiting, reading)

    # -- ending ------------------------------------------------------------------------

    def _reply(self, outcome: Outcome) -> None:
        """Pass on what a turn got, or end it."""
        self._queue_again()
        if isinstance(outcome, Ended):
            try:
                self._finish(outcome.request, outcome.reason)
            except Exception as error:
                self._abort(outcome.request, turn_failed(outcome.request, error))
                if is_fatal(error):
                    raise
        elif isinstance(outcome, Failed):
            self._abort(outcome.request, outcome.error)
        else:
            self._events.append(outcome)

    def _queue_again(self) -> None:
        """Turns that gave way wait again; they count from here who ends."""
        gave_way = self.execution.preemption.gave_way
        while gave_way:
            self._admission.put_back(gave_way.pop(0))

    def _end_cancelled(self) -> None:
        while self._cancelled:
            request = self._cancelled.pop(0)
            if request in self._admission.waiting:
                # What is hot may be of a turn that was undone.
                self.memory.hot.keep_common(request.agent_id, request.tokens, request.form.spec)
                self._admission.note_cache(request)
                self._reply(Ended(request, "cancelled"))
            elif request in self.memory.running.active:
                self._reply(Ended(request, "cancelled"))

    def _finish(self, request: Request, reason: str) -> None:
        """End a turn well: its KV becomes hot, what is new of it goes to the store."""
        keeps = not request.passing
        if request.lends:
            # Nobody leaves for what nobody remembers.
            fits = self.execution.preemption.can_keep(request, request.cached)
            keeps = fits and any(self._sharing.beginnings(request))
        if keeps:
            self.execution.keep(request)
            self._sharing.offer(request)
            self._queue_again()
        self.execution.leave(request)
        self._admission.ended(request)
        exported = () if request.forgotten else self._transfer.export(request)
        self._events.append(Finished(request, reason, self._clock(), exported))

    def _abort(self, request: Request, error: Exception) -> None:
        """End a turn without a trace in what is remembered or saved. The agent's cache has what it
        had, and perhaps whole pieces of the prompt: a retry begins behind them, any other turn cuts
        them off, and they are evicted like all that is hot."""
        self.execution.leave(request)
        self._admission.ended(request)
        self._events.append(Aborted(request.agent_id, request.serial, error))


def _speculation(loaded: LoadedModel, config: EngineConfig, memory: Memory) -> Speculation | None:
    """What drafts, unless it is turned off, or a run is to repeat to the bit. What a draft model
    remembers is on the account of `memory`."""
    if config.speculation is None or loaded.policy.reproducible:
        return None
    if loaded.draft is None:
        return Speculation(config.speculation)
    positions = stated_positions(loaded.draft)
    memory.drafts = Chains(loaded.draft, loaded.spec.vocab_size, memory.can_draft, positions)
    return Speculation(config.speculation, memory.drafts)


def _begun(request: Request) -> list[Event]:
    """What whoever reads a turn as it comes hears when it is admitted: how much of it is known."""
    if not request.stream or request.preempted:
        return []
    return [Begun(request.agent_id, request.serial, request.prompt, request.kept)]
