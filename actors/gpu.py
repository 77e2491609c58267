"""The GPU actor: the only place where MLX is touched.

It lives on the one MLX thread of the process, which successive systems reuse (MLX leaves an
OS thread behind for each thread that used it). A Tick runs one plan of the engine and asks
for the next Tick, so that messages and GPU work interleave without a lock.
"""

import functools
import gc
import logging
import os
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from kvactors.actors.dispatcher import Dispatcher, SystemActor, send
from kvactors.actors.health import Vitals
from kvactors.actors.launch import Launch
from kvactors.actors.messages import (
    Cancel,
    Check,
    Forget,
    ForkCache,
    LoadKV,
    NewTokens,
    Prefetch,
    ReadStats,
    ReadTurns,
    Restored,
    Saved,
    Step,
    Tick,
    TurnAborted,
    TurnFinished,
    Wire,
)
from kvactors.actors.model_messages import EncodeFloats, LoadModel, SwapModel, Swapped
from kvactors.actors.supervision import Restarts, Supervision
from kvactors.core.errors import AdmissionFull, EngineDied, MemoryExceeded, ModelError
from kvactors.core.events import Aborted, Event, Finished, KVNeeded, Progress, Tokens
from kvactors.core.info import ModelInfo
from kvactors.core.trace import Fault, RestoreBegan, RestoreEnded, Tracer

if TYPE_CHECKING:
    from kvactors.core.engine import Engine

__all__ = ["GpuActor", "mlx_dispatcher"]

logger = logging.getLogger(__name__)

# A device that fails more often than this is given up.
REBUILDS = Supervision("restart", backoff=0, most=5, window=60)

OnProgress = Callable[[str, int, int], None]


@functools.cache
def _mlx_thread() -> tuple[int, Dispatcher]:
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


class GpuActor(SystemActor):
    """Runs the engine. `died` is told the cause if the engine breaks."""

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
        self._persistence: Any = None
        self._died = died
        self._on_progress = on_progress
        self._engine: Engine | None = None
        self._agents: dict[str, Any] = {}
        self._ticking = False
        self._model: ModelInfo | None = None
        self._launch: Launch | None = None
        self._rebuilds = Restarts(REBUILDS)
        self._vitals = vitals or Vitals()
        self._tracer = tracer or Tracer()

    def on_receive(self, message: Any) -> Any:
        """Handle one message. What breaks the engine itself builds it anew, or ends the actor."""
        try:
            return self._receive(message)
        except BaseException as error:
            if isinstance(message, LoadModel):
                raise
            if not self._rebuild(error):
                self._die(error)
                raise
        finally:
            self._vitals.step_ended()
            if self._engine is not None:
                self._vitals.hot_bytes = self._engine.hot_bytes
        return None if isinstance(message, Tick) else self.on_receive(message)

    def on_stop(self) -> None:
        """Free the model and every cache on the thread that owns them."""
        import mlx.core as mx

        self._drop_engine()
        mx.clear_cache()

    def _receive(self, message: Any) -> Any:
        if isinstance(message, LoadModel):
            return self._load(message.launch)
        if isinstance(message, Wire):
            self._persistence = message.persistence
            return None
        if isinstance(message, SwapModel):
            return self._swap(message)
        engine = self._engine
        assert engine is not None, "the model is loaded first"
        if isinstance(message, Tick):
            self._tick(engine)
            return None
        answer = self._control(engine, message)
        self._wake(engine)
        return answer

    def _control(self, engine: "Engine", message: Any) -> Any:
        if isinstance(message, Step):
            self._agents[message.request.agent_id] = message.agent
            try:
                engine.submit(message.request)
            except (AdmissionFull, MemoryExceeded) as error:
                send(message.agent, TurnAborted(message.request.serial, error))
        elif isinstance(message, Cancel):
            engine.cancel(message.agent_id, message.serial, message.error)
        elif isinstance(message, Restored):
            self._restored(engine, message)
        elif isinstance(message, Saved):
            engine.saved(message.agent_id, message.nbytes, message.limit)
        elif isinstance(message, Prefetch):
            engine.prefetch(message.agent_id, list(message.token_ids))
        elif isinstance(message, ForkCache):
            engine.fork(message.parent, message.child)
        elif isinstance(message, Forget):
            engine.forget(message.agent_id)
            self._agents.pop(message.agent_id, None)
        elif isinstance(message, ReadStats):
            return engine.stats(), engine.in_memory
        elif isinstance(message, ReadTurns):
            return engine.turns()
        elif isinstance(message, Check):
            engine.check()
        elif isinstance(message, EncodeFloats):
            return self._encode(message)
        return None

    def _encode(self, message: EncodeFloats) -> Any:
        from kvactors.core.wire import encode_floats

        return encode_floats(message.layer, message.floats)

    # -- the model ---------------------------------------------------------------------

    @property
    def _fingerprint(self) -> str:
        assert self._model is not None, "the model is loaded first"
        return self._model.fingerprint

    def _load(self, launch: Launch) -> ModelInfo:
        self._model, self._engine = launch(self._tracer)
        self._launch = launch
        return self._model

    def _swap(self, message: SwapModel) -> Swapped:
        """Two models never take memory at once. Raises, and ends the actor, if neither loads."""
        assert self._model is not None, "the model is loaded first"
        try:
            message.launch.check()
        except ModelError as error:
            return Swapped(self._model, error)
        self._let_go()
        try:
            return Swapped(self._load(message.launch))
        except Exception as error:
            _release_frames(error)
            self._let_go()
            return Swapped(self._load(message.fallback), error)

    def _let_go(self) -> None:
        import mlx.core as mx

        self._drop_engine()
        # The engine's parts refer to each other.
        gc.collect()
        mx.clear_cache()

    def _drop_engine(self) -> None:
        if self._engine is not None:
            self._engine.release()
        self._engine, self._vitals.watched = None, False

    def _rebuild(self, error: BaseException) -> bool:
        """A fatal error: load the model again and go on with the turns that are left. False if
        that fails, or happened too often."""
        engine, launch, vitals = self._engine, self._launch, self._vitals
        if engine is None or launch is None or self._rebuilds.next(time.monotonic()) is None:
            return False
        logger.error("the engine is built anew after: %s", error, exc_info=error)
        self._fault(error)
        vitals.state, vitals.error = "rebuilding", f"{type(error).__name__}: {error}"
        traceback.clear_frames(error.__traceback__)
        events, turns, backlog = engine.abandon()
        for event in events:
            self._report(event)
        del engine
        self._let_go()
        try:
            info, rebuilt = launch(self._tracer)
            if info.fingerprint != self._fingerprint:
                raise ModelError("the model that was loaded again is another one")
        except Exception as failure:
            error.__cause__ = failure
            return False
        self._engine = rebuilt
        rebuilt.resume(turns, backlog)
        vitals.state, vitals.rebuilds = "ok", vitals.rebuilds + 1
        self._ticking = False
        self._wake(rebuilt)
        return True

    # -- running -----------------------------------------------------------------------

    def _wake(self, engine: "Engine") -> None:
        if engine.busy and not self._ticking:
            self._ticking = True
            self.actor_ref.tell(Tick())

    def _tick(self, engine: "Engine") -> None:
        self._ticking = False
        self._vitals.step_begins()
        for event in engine.step():
            self._report(event)
        self._vitals.watched = engine.watched
        self._wake(engine)

    def _report(self, event: Event) -> None:
        if isinstance(event, Tokens):
            self._tell(event.agent_id, NewTokens(event.serial, event.token_ids))
        elif isinstance(event, Finished):
            self._finish(event)
        elif isinstance(event, Aborted):
            self._tell(event.agent_id, TurnAborted(event.serial, event.error))
        elif isinstance(event, KVNeeded):
            self._load_kv(event.agent_id)
        elif isinstance(event, Progress) and self._on_progress is not None:
            self._show_progress(self._on_progress, event)

    def _show_progress(self, callback: OnProgress, event: Progress) -> None:
        try:
            callback(event.agent_id, event.done, event.total)
        except Exception:
            logger.exception("the progress callback raised; it is not called again")
            self._on_progress = None

    def _finish(self, event: Finished) -> None:
        finished = TurnFinished(event, self.actor_ref)
        if not self._tell(event.request.agent_id, finished):
            finished.reject()

    def _load_kv(self, agent_id: str) -> None:
        if self._tracer.on:
            self._tracer.tell(RestoreBegan(time.perf_counter(), agent_id))
        if not send(self._persistence, LoadKV(agent_id, self._fingerprint)):
            self.actor_ref.tell(Restored(agent_id, self._fingerprint, ()))

    def _restored(self, engine: "Engine", message: Restored) -> None:
        # What was asked for another model may come late.
        if message.fingerprint == self._fingerprint:
            engine.provide(message.agent_id, message.stored)
        if self._tracer.on:
            nbytes, now = sum(part.nbytes for part in message.stored), time.perf_counter()
            tier: Literal["warm", "cold"] = "warm" if message.stored else "cold"
            self._tracer.tell(RestoreEnded(now, message.agent_id, nbytes, tier))

    def _fault(self, error: BaseException) -> None:
        if self._tracer.on:
            fault = Fault(time.perf_counter(), "device", "", type(error).__name__)
            self._tracer.tell(fault)

    def _tell(self, agent_id: str, message: Any) -> bool:
        agent = self._agents.get(agent_id)
        return agent is not None and send(agent, message)

    def _die(self, error: BaseException) -> None:
        died = EngineDied(f"the GPU actor died: {type(error).__name__}: {error}")
        died.__cause__ = error
        traceback.clear_frames(error.__traceback__)
        self._drop_engine()
        self._fault(error)
        self._vitals.state, self._vitals.error = "dead", str(died)
        self.actor_stopped.set()
        self._died(died)


def _release_frames(error: BaseException) -> None:
    """Free what a failure's frames hold: half a model, perhaps."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__
