"""The engine that runs, and how it is exchanged: loaded, swapped, built anew. On the MLX thread.

Two models never take memory at once: one is gone before the next is loaded.
"""

import gc
import logging
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from kvactors.actors.runtime.supervision import Restarts, Supervision
from kvactors.actors.turns.messages_gpu import SwapModel, Swapped
from kvactors.actors.workers.health import Vitals
from kvactors.core.engine.launch import Launch
from kvactors.core.errors import ModelError
from kvactors.core.model.info import ModelInfo
from kvactors.core.schedule.events import Event
from kvactors.core.trace import Tracer

if TYPE_CHECKING:
    from kvactors.core.engine.engine import Engine

__all__ = ["EngineSlot"]

logger = logging.getLogger(__name__)

# A device that fails more often than this is given up.
REBUILDS = Supervision("restart", backoff=0, most=5, window=60)


class EngineSlot:
    """Holds at most one engine."""

    def __init__(self, vitals: Vitals, tracer: Tracer) -> None:
        self._vitals = vitals
        self._tracer = tracer
        self._engine: Engine | None = None
        self._model: ModelInfo | None = None
        self._launch: Launch | None = None
        self._rebuilds = Restarts(REBUILDS)

    @property
    def engine(self) -> "Engine":
        """The one that is loaded."""
        assert self._engine is not None, "the model is loaded first"
        return self._engine

    @property
    def model(self) -> ModelInfo:
        """The one that was loaded last."""
        assert self._model is not None, "the model is loaded first"
        return self._model

    @property
    def busy(self) -> bool:
        """Whether an engine has something to do."""
        return self._engine is not None and self._engine.busy

    @property
    def hot_bytes(self) -> int:
        """Bytes of KV in memory of agents that do not run."""
        return 0 if self._engine is None else self._engine.memory.hot.held.cached_bytes

    def load(self, launch: Launch) -> ModelInfo:
        """Load a model into the empty slot. Raises ModelError."""
        self._model, self._engine = launch(self._tracer)
        self._launch = launch
        return self._model

    def swap(self, message: SwapModel) -> Swapped:
        """Exchange the model. Raises if neither the new one nor the old one loads."""
        try:
            message.launch.check()
        except Exception as error:  # Whatever it is, nothing has been let go by now.
            return Swapped(self.model, error)
        self._let_go()
        try:
            return Swapped(self.load(message.launch))
        except Exception as error:
            _release_frames(error)
            self._let_go()
            return Swapped(self.load(message.fallback), error)

    def rebuild(self, error: BaseException, report: Callable[[Event], None]) -> bool:
        """After a fatal error: load the model again and go on with the turns that are left; how
        the others ended is reported. False if that fails, or happened too often."""
        launch = self._launch
        if self._engine is None or launch is None or self._rebuilds.next(time.monotonic()) is None:
            return False
        logger.error("the engine is built anew after: %s", error, exc_info=error)
        self._vitals.rebuild_begins(error)
        traceback.clear_frames(error.__traceback__)
        events, turns, backlog = self._engine.abandon()
        for event in events:
            report(event)
        self._let_go()
        try:
            self._engine = self._load_again(launch)
        except Exception as failure:
            _release_frames(failure)
            error.__cause__ = failure
            return False
        self._engine.resume(turns, backlog)
        self._vitals.rebuild_ended()
        return True

    def _load_again(self, launch: Launch) -> "Engine":
        info, rebuilt = launch(self._tracer)
        if info.fingerprint != self.model.fingerprint:
            rebuilt.memory.release()
            raise ModelError("the model that was loaded again is another one")
        return rebuilt

    def drop(self) -> None:
        """Free the engine and every cache of it."""
        if self._engine is not None:
            self._engine.memory.release()
        self._engine, self._vitals.streaming = None, False

    def _let_go(self) -> None:
        import mlx.core as mx

        self.drop()
        # The engine's parts refer to each other.
        gc.collect()
        # What was launched before a device failed fails too, and whoever computes next is told.
        with suppress(RuntimeError):
            mx.synchronize()
        mx.clear_cache()


def _release_frames(error: BaseException) -> None:
    """Free what a failure's frames hold: half a model, perhaps."""
    cause: BaseException | None = error
    seen = set[int]()
    # One error that is raised twice may come about by itself.
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__
