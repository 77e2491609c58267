"""Crew: the actors and threads of one running system, started and ended in order."""

import logging
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from pykka import ActorDeadError, Timeout, messages

from kvactors.actors.deterministic import SeededDispatcher, VirtualTimer
from kvactors.actors.dispatcher import Dispatcher, send
from kvactors.actors.futures import drive
from kvactors.actors.gpu import GpuActor, OnProgress, mlx_dispatcher
from kvactors.actors.health import Vitals
from kvactors.actors.launch import Launch
from kvactors.actors.messages import OpenStore, Wire
from kvactors.actors.model_messages import LoadModel
from kvactors.actors.outstanding import Outstanding
from kvactors.actors.persistence import PersistenceActor
from kvactors.actors.timer import Timer
from kvactors.core import blas
from kvactors.core.errors import EngineDied, SystemStopped
from kvactors.core.info import ModelInfo
from kvactors.core.trace import Tracer
from kvactors.persistence.store import Store

__all__ = ["Crew"]

logger = logging.getLogger(__name__)

POOL_THREADS = 2
# Python threads that compute starve the GPU thread of the GIL; a shorter switch interval
# than Python's 5 ms gives it back sooner (measured: a 7 ms step beside one busy thread
# takes 10 ms instead of 16).
SWITCH_INTERVAL = 0.0005


class Crew:
    """One GPU actor, at most one persistence actor, the threads that agents share."""

    def __init__(self) -> None:
        self.tracer = Tracer()
        self.outstanding = Outstanding(self.tracer)
        self.timer: Timer = Timer()
        self.vitals = Vitals()
        # Seconds that a step may take before it is reported.
        self.watchdog = 60.0
        # Of deterministic mode.
        self.seed: int | None = None
        self.log_text = False
        self._reported = False
        self.gpu: Any = None
        self.persistence: Any = None
        self.pool: Any = None
        self._dispatchers: list[Dispatcher] = []

    def start(
        self,
        launch: Launch,
        open_store: Callable[[], Store] | None,
        on_progress: OnProgress | None,
    ) -> ModelInfo:
        """Open the store, load the model. Raises StorageError or ModelError."""
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL))
        blas.advise()
        if self.seed is None:
            gpu_thread = mlx_dispatcher()
            self.pool = self._dispatcher("kvactors-agents", POOL_THREADS)
        else:
            self.timer = VirtualTimer()
            gpu_thread = self.pool = SeededDispatcher(self.seed, self.timer, mlx_dispatcher())
            self._dispatchers.append(self.pool)
        self.gpu = GpuActor.start(
            self._engine_died, on_progress, self.vitals, gpu_thread, self.tracer
        )
        if open_store is not None:
            writer = self.pool
            if self.seed is None:
                writer = self._dispatcher("kvactors-persistence", 1)
            self.persistence = PersistenceActor.start(
                writer,
                open_store,
                self.gpu,
                self.outstanding,
                self.timer.after,
                self.tracer,
                self._watched,
            )
            self.persistence.ask(OpenStore())
            self.gpu.ask(Wire(self.persistence))
        info: ModelInfo = self.gpu.ask(LoadModel(launch))
        if self.seed is None:
            self._watch()
        return info

    def stop(self, agents: Iterable[Any], timeout: float | None = None) -> None:
        """End the agents (their references), then the GPU actor, then the store.

        What does not end within `timeout` seconds is left behind on its daemon thread.
        """
        deadline = None if timeout is None else time.monotonic() + timeout

        def left() -> float | None:
            return None if deadline is None else max(0.05, deadline - time.monotonic())

        # A future for each would be most of the work for a hundred thousand.
        stopping = [agent for agent in agents if send(agent, messages._ActorStop())]
        drive(lambda: all(agent.actor_stopped.is_set() for agent in stopping), left())
        for agent in stopping:
            agent.actor_stopped.wait(left())
        self.outstanding.fail_turns(SystemStopped("the system is stopped"))
        for actor in (self.gpu, self.persistence):
            if actor is not None:
                with suppress(Timeout):
                    actor.stop(timeout=left())
        self.timer.close()
        for dispatcher in self._dispatchers:
            dispatcher.close(left())

    def ask(self, actor: Any, message: Any) -> Any:
        """Ask an actor of the crew and wait. Raises why it is dead, if it is."""
        try:
            return actor.ask(message)
        except ActorDeadError:
            reason = self.outstanding.refusal or SystemStopped("the system is stopped")
            # The futures that failed hold the same error: its cause must stay.
            raise reason from reason.__cause__

    def _dispatcher(self, name: str, threads: int) -> Dispatcher:
        dispatcher = Dispatcher(name, threads)
        self._dispatchers.append(dispatcher)
        return dispatcher

    def _watched(self) -> bool:
        """Whether a save is to rest: never on the one thread of deterministic mode."""
        return self.seed is None and self.vitals.watched

    def _watch(self) -> None:
        """Look again and again whether a step hangs, and say so once."""
        hangs = self.vitals.step_seconds > self.watchdog
        if hangs and not self._reported:
            logger.error("a step of the engine takes longer than %g s", self.watchdog)
        self._reported = hangs
        self.timer.after(self.watchdog / 4, self._watch)

    def _engine_died(self, cause: EngineDied) -> None:
        logger.error("%s", cause)
        self.outstanding.refuse(cause)
        self.outstanding.fail_turns(cause)
