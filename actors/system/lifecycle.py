"""Lifecycle: the actors and threads of one running system, started and ended in order."""

import functools
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from pykka import ActorDeadError, Timeout

from kvactors.actors.runtime.blocking import check_may_block, drive
from kvactors.actors.runtime.deterministic import SeededDispatcher, VirtualTimer
from kvactors.actors.runtime.dispatcher import Dispatcher, send_stop
from kvactors.actors.runtime.timer import Deadline, Timer
from kvactors.actors.runtime.waits import Waits
from kvactors.actors.turns.checks import check_wait
from kvactors.actors.turns.messages_gpu import LoadModel, Wire
from kvactors.actors.turns.messages_store import OpenStore
from kvactors.actors.turns.outstanding import Outstanding
from kvactors.actors.workers.gpu import GpuActor, OnProgress, mlx_dispatcher
from kvactors.actors.workers.health import Health, Vitals
from kvactors.actors.workers.persistence import PersistenceActor
from kvactors.core import blas
from kvactors.core.engine.launch import Launch
from kvactors.core.errors import EngineDied, InvalidConfig, SystemStopped
from kvactors.core.model.info import ModelInfo
from kvactors.core.trace import Tracer
from kvactors.persistence.store.store import Store

__all__ = ["Lifecycle"]

logger = logging.getLogger(__name__)

POOL_THREADS = 2
STOPPED = "the system is stopped"


class Lifecycle:
    """One GPU actor, at most one persistence actor, the threads that agents share.

    `state` is "new", "running", "stopped", or what else the system is. `open_store` opens the
    store on its actor's thread, None where nothing is kept; `seed` is of deterministic mode;
    `watchdog`: seconds that a step or an answer may take before it is reported; `on_progress`
    hears of prefills; `max_unsaved`: bytes that may wait for the disk. `open_store`, `timer` and
    the kinds of the actors may be exchanged before the start (`kvactors.actors.testing`).
    """

    def __init__(
        self,
        open_store: functools.partial[Store] | None,
        on_progress: OnProgress | None,
        *,
        seed: int | None,
        watchdog: float,
        max_unsaved: int,
    ) -> None:
        self.state = "new"
        self.open_store = open_store
        self.timer: Timer = Timer()
        self.gpu_kind: type[GpuActor] = GpuActor
        self.persistence_kind: type[PersistenceActor] = PersistenceActor
        self.tracer = Tracer()
        self.outstanding = Outstanding(self.tracer)
        self.outstanding.unsaved.limit = max_unsaved
        self.vitals = Vitals()
        self.waits = Waits(self.now)
        self.gpu: Any = None
        self.persistence: Any = None
        self.pool: Any = None
        self._on_progress = on_progress
        self._seed = seed
        self._watchdog = watchdog
        self._reported = False
        self._dispatchers: list[Dispatcher] = []

    @property
    def deterministic(self) -> bool:
        """Whether one thread runs everything."""
        return self._seed is not None

    def start(self, launch: Launch) -> ModelInfo:
        """Open the store, load the model. Raises StorageError or ModelError."""
        blas.advise()
        if self._seed is None:
            gpu_thread = mlx_dispatcher()
            self.pool = self._dispatcher("kvactors-agents", POOL_THREADS)
        else:
            self.timer = VirtualTimer()
            gpu_thread = self.pool = SeededDispatcher(self._seed, self.timer, mlx_dispatcher())
            self._dispatchers.append(self.pool)
        self.gpu = self.gpu_kind.start(
            self._engine_died, self._on_progress, self.vitals, gpu_thread, self.tracer
        )
        if self.open_store is not None:
            self._start_persistence(self.open_store)
        info: ModelInfo = self.gpu.ask(LoadModel(launch))
        if not self.deterministic:
            self._watch()
        return info

    def _start_persistence(self, open_store: Callable[[], Store]) -> None:
        own = not self.deterministic
        self.persistence = self.persistence_kind.start(
            self._dispatcher("kvactors-persistence", 1) if own else self.pool,
            open_store,
            self.gpu,
            self.outstanding,
            after=self.after,
            tracer=self.tracer,
            streaming=self._streaming,
        )
        self.persistence.ask(OpenStore())
        self.gpu.ask(Wire(self.persistence))

    def require_running(self) -> None:
        """Raise SystemStopped unless the system runs."""
        if self.state != "running":
            raise SystemStopped(f"the system is {self.state}: use it inside `with`")

    def require_store(self, what: str) -> Any:
        """The persistence actor; `what`: "import and export need". Raises InvalidConfig without
        one."""
        if self.persistence is None:
            raise InvalidConfig(f"{what} a store, and this system has store=False")
        return self.persistence

    def abandon(self) -> None:
        """In a forked child: none of the threads is there; the system stays the parent's."""
        self.state = "left to the process that it was forked from"
        self.outstanding.abandon(SystemStopped(f"the system is {self.state}"))

    def now(self) -> float:
        """Seconds of the system's clock."""
        return self.timer.now()

    def after(self, seconds: float, callback: Callable[[], object]) -> Deadline:
        """Call back, on the timer's thread."""
        return self.timer.after(seconds, callback)

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until no turn or message runs or waits, no `later` is due, and every save is on
        disk. Messages of `every` count only while they are handled.

        Returns False if `timeout` seconds pass first. Raises InvalidInput.
        """
        return self.outstanding.wait(check_wait(timeout))

    def health(self) -> Health:
        """How the engine and the store are, without waiting for either. Any thread."""
        self.require_running()
        vitals, seconds = self.vitals, self.vitals.step_seconds
        unsaved = self.outstanding.unsaved
        stalled = vitals.state == "ok" and seconds > self._watchdog
        return Health(
            "stalled" if stalled else vitals.state,
            seconds,
            vitals.rebuilds,
            vitals.error,
            "failing" if unsaved.disk_fails else "ok",
            unsaved.total,
            unsaved.refusal,
            self.waits.longer_than(self._watchdog),
        )

    def stop(self, agents: Iterable[Any], timeout: float | None = None) -> None:
        """End the agents (their references), then the GPU actor, then the store.

        What does not end within `timeout` seconds is left behind on its daemon thread.
        """
        deadline = None if timeout is None else time.monotonic() + timeout

        def left() -> float | None:
            return None if deadline is None else max(0.05, deadline - time.monotonic())

        # A future for each would be most of the work for a hundred thousand.
        stopping = [agent for agent in agents if send_stop(agent)]
        drive(lambda: all(agent.actor_stopped.is_set() for agent in stopping), left())
        for agent in stopping:
            agent.actor_stopped.wait(left())
        self.outstanding.fail_turns(SystemStopped(STOPPED))
        for actor in (self.gpu, self.persistence):
            if actor is not None:
                with suppress(Timeout):
                    actor.stop(timeout=left())
        self.timer.close()
        for dispatcher in self._dispatchers:
            dispatcher.close(left())

    def ask(self, actor: Any, message: Any) -> Any:
        """Ask one of the actors and wait. Raises why it is dead, if it is, and BlockingCall where
        nothing may wait: then nobody was asked."""
        check_may_block()
        try:
            return actor.ask(message)
        except ActorDeadError:
            reason = self.outstanding.refusal or SystemStopped(STOPPED)
            # The futures that failed hold the same error: its cause must stay.
            raise reason from reason.__cause__

    def _dispatcher(self, name: str, threads: int) -> Dispatcher:
        dispatcher = Dispatcher(name, threads)
        self._dispatchers.append(dispatcher)
        return dispatcher

    def _streaming(self) -> bool:
        """Whether a save is to rest: never on the one thread of deterministic mode."""
        return not self.deterministic and self.vitals.streaming

    def _watch(self) -> None:
        """Look again and again whether a step hangs or an answer does not come; say so once."""
        hangs = self.vitals.step_seconds > self._watchdog
        if hangs and not self._reported:
            logger.error("a step of the engine takes longer than %g s", self._watchdog)
        self._reported = hangs
        for wait in self.waits.news(self._watchdog):
            logger.warning("%s", wait)
        self.timer.after(self._watchdog / 4, self._watch)

    def _engine_died(self, cause: EngineDied) -> None:
        logger.error("%s", cause)
        self.outstanding.refuse(cause)
        self.outstanding.fail_turns(cause)
