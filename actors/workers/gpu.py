"""The GPU actor: the only place where MLX is touched.

It lives on the one MLX thread of the process, which successive systems reuse (MLX leaves an
OS thread behind for each thread that used it). A Tick runs one plan of the engine and asks
for the next Tick, so that messages and GPU work interleave without a lock.
"""

import functools
import os
import traceback
from collections.abc import Callable
from typing import Any

from kvactors.actors.runtime.dispatcher import Dispatcher, SystemActor, handles, send
from kvactors.actors.runtime.leaving import interrupt
from kvactors.actors.turns.messages_gpu import (
    Cancel,
    Check,
    EncodeFloats,
    Forget,
    ForkCache,
    LoadModel,
    PrefetchKV,
    ReadStats,
    ReadTurns,
    Restored,
    Saved,
    Step,
    SwapModel,
    Swapped,
    Tick,
    Wire,
)
from kvactors.actors.workers.engine_reports import EngineReports, OnProgress
from kvactors.actors.workers.engine_slot import EngineSlot
from kvactors.actors.workers.health import Vitals
from kvactors.actors.workers.switching import switching
from kvactors.core.engine.status import held, in_memory
from kvactors.core.errors import (
    AdmissionFull,
    EngineDied,
    MemoryExceeded,
    ModelError,
    SystemStopped,
)
from kvactors.core.model.info import ModelInfo
from kvactors.core.schedule.events import Aborted
from kvactors.core.trace import Tracer

__all__ = ["GpuActor", "OnProgress", "leave_mlx", "mlx_dispatcher"]


# An engine that was built anew would answer another one.
_QUESTIONS = (LoadModel, EncodeFloats, ReadStats, ReadTurns, Check)


@functools.cache
def _mlx_thread() -> tuple[int, Dispatcher]:
    # On the thread of whoever starts: MLX clears what that thread has compiled before Python ends,
    # and no other's. A program that uses MLX on its main thread, too, would crash at its end.
    import mlx.core  # noqa: F401

    return os.getpid(), Dispatcher("kvactors-mlx", 1)


def mlx_dispatcher() -> Dispatcher:
    """The process's one MLX thread. Raises ModelError in a child forked from a process that
    had one: there MLX waits for the parent's threads, for ever and with the GIL held."""
    pid, dispatcher = _mlx_thread()
    if pid != os.getpid():
        raise ModelError(
            f"MLX cannot be used in a process forked from one that used it (process {pid}): "
            'start it with multiprocessing.get_context("spawn")'
        )
    return dispatcher


def leave_mlx(seconds: float) -> None:
    """End what is still computed of who was interrupted, before the process ends: what does not end
    within so many `seconds` is left."""
    if _mlx_thread.cache_info().currsize:
        pid, dispatcher = _mlx_thread()
        if pid == os.getpid():
            interrupt(dispatcher, SystemStopped, seconds)


class GpuActor(SystemActor):
    """Runs the engine, on the threads of `dispatcher`. `died` is told the cause if the engine
    breaks, `on_progress` how far prefills are, `vitals` how it is, `tracer` what happens."""

    def __init__(
        self,
        died: Callable[[EngineDied], None],
        on_progress: OnProgress | None = None,
        vitals: Vitals | None = None,
        dispatcher: Dispatcher | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        super().__init__()
        self.dispatcher = dispatcher or mlx_dispatcher()
        self._died = died
        self._vitals = vitals or Vitals()
        tracer = tracer or Tracer()
        self._slot = EngineSlot(self._vitals, tracer)
        self._reports = EngineReports(
            self.actor_ref, lambda: self._slot.model.fingerprint, on_progress, tracer
        )
        self._ticking = False
        self._switch_interval: float | None = None

    def on_receive(self, message: Any) -> Any:
        """Handle one message. What breaks the engine itself builds it anew, or ends the actor; what
        a question finds is its asker's."""
        try:
            answer = super().on_receive(message)
            self._wake()
        except BaseException as error:
            if isinstance(message, _QUESTIONS):
                raise
            self._reports.fault(error)
            # Who is told to stop, at the end of the process, needs no engine any more.
            stopped = isinstance(error, SystemStopped)
            if stopped or not self._slot.rebuild(error, self._reports.tell):
                self._die(error)
                raise
            self._ticking = False
            self._wake()
        else:
            return answer
        finally:
            self._vitals.step_ended()
            self._vitals.hot_bytes = self._slot.hot_bytes
        return None if isinstance(message, Tick) else self.on_receive(message)

    def on_stop(self) -> None:
        """Free the model and every cache on the thread that owns them."""
        import mlx.core as mx

        self._slot.drop()
        mx.clear_cache()

    # -- the model ---------------------------------------------------------------------

    @handles(LoadModel)
    def _load(self, message: LoadModel) -> ModelInfo:
        self._switch_interval = message.launch.switch_interval
        return self._slot.load(message.launch)

    @handles(SwapModel)
    def _swap(self, message: SwapModel) -> Swapped:
        return self._slot.swap(message)

    @handles(Wire)
    def _wire(self, message: Wire) -> None:
        self._reports.persistence = message.persistence

    # -- running -----------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._ticking and self._slot.busy:
            self._ticking = True
            self.actor_ref.tell(Tick())

    @handles(Tick)
    def _tick(self, _message: Tick) -> None:
        self._ticking = False
        self._vitals.step_begins()
        engine = self._slot.engine
        with switching(self._switch_interval):
            events = engine.step(self._reports.tell)
            # Who hears that a turn has ended may look at once.
            self._vitals.hot_bytes = self._slot.hot_bytes
            for event in events:
                self._reports.tell(event)
        self._vitals.streaming = engine.streaming

    @handles(Step)
    def _submit(self, message: Step) -> None:
        request = message.request
        self._reports.agents[request.agent_id] = message.agent
        try:
            self._slot.engine.submit(request)
        except (AdmissionFull, MemoryExceeded) as error:
            send(message.agent, Aborted(request.agent_id, request.serial, error))

    @handles(Cancel)
    def _cancel(self, message: Cancel) -> None:
        self._slot.engine.cancel(message.agent_id, message.serial, message.error)

    @handles(Restored)
    def _restored(self, message: Restored) -> None:
        # What was asked for another model may come late.
        if message.fingerprint == self._slot.model.fingerprint:
            self._slot.engine.provide(message.agent_id, message.stored)
        self._reports.restored(message)

    @handles(Saved)
    def _saved(self, message: Saved) -> None:
        if message.fingerprint in (None, self._slot.model.fingerprint):
            self._slot.engine.saved(message.agent_id, message.nbytes, message.limit)

    @handles(PrefetchKV)
    def _prefetch(self, message: PrefetchKV) -> None:
        self._slot.engine.prefetch(message.agent_id, list(message.token_ids))

    @handles(ForkCache)
    def _fork(self, message: ForkCache) -> None:
        self._slot.engine.memory.fork(message.parent, message.child)

    @handles(Forget)
    def _forget(self, message: Forget) -> None:
        self._slot.engine.forget(message.agent_id)
        self._reports.agents.pop(message.agent_id, None)

    @handles(EncodeFloats)
    def _encode(self, message: EncodeFloats) -> Any:
        from kvactors.core.arena.wire import encode_floats

        return encode_floats(message.layer, message.floats)

    @handles(ReadStats)
    def _read_stats(self, message: ReadStats) -> Any:
        engine = self._slot.engine
        if message.held is not None:
            return held(engine.memory, message.held)
        return engine.stats(), in_memory(engine.memory)

    @handles(ReadTurns)
    def _read_turns(self, _message: ReadTurns) -> Any:
        return self._slot.engine.turns()

    @handles(Check)
    def _check(self, _message: Check) -> None:
        self._slot.engine.check()

    # -- what breaks -------------------------------------------------------------------

    def _die(self, error: BaseException) -> None:
        died = EngineDied(f"the GPU actor died: {type(error).__name__}: {error}")
        died.__cause__ = error
        traceback.clear_frames(error.__traceback__)
        self._slot.drop()
        self._vitals.state, self._vitals.error = "dead", str(died)
        self.actor_stopped.set()
        self._died(died)
