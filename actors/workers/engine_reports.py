"""What the engine reports, brought to whom it concerns. On the MLX thread."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from kvactors.actors.runtime.dispatcher import send
from kvactors.actors.turns.messages_agent import TurnFinished
from kvactors.actors.turns.messages_gpu import Restored
from kvactors.actors.turns.messages_store import LoadKV
from kvactors.core.schedule.events import (
    Aborted,
    Begun,
    Event,
    Finished,
    KVNeeded,
    Progress,
    Tokens,
)
from kvactors.core.trace import Fault, RestoreBegan, RestoreEnded, Tracer

__all__ = ["EngineReports", "OnProgress"]

logger = logging.getLogger(__name__)

OnProgress = Callable[[str, int, int], None]


class EngineReports:
    """Knows the agents that have asked, by id, and who reads the store. `gpu` is the GPU actor's
    reference, `fingerprint` gives the loaded model's, `on_progress` is called as prefills go on,
    `tracer` hears of the store's answers and of faults."""

    def __init__(
        self,
        gpu: Any,
        fingerprint: Callable[[], str],
        on_progress: OnProgress | None,
        tracer: Tracer,
    ) -> None:
        self.agents: dict[str, Any] = {}
        self.persistence: Any = None
        self._gpu = gpu
        self._fingerprint = fingerprint
        self._tracer = tracer
        self._on_progress = on_progress
        self._tellers: Mapping[type, Callable[[Any], object]] = {
            Begun: self._pass_on,
            Tokens: self._pass_on,
            Aborted: self._pass_on,
            Finished: self._finished,
            KVNeeded: self._load,
            Progress: self._progress,
        }

    def tell(self, event: Event) -> None:
        """Tell an agent of its turn, the program of progress, the store of KV that is needed."""
        self._tellers[type(event)](event)

    def restored(self, message: Restored) -> None:
        """Tell listeners that the store has answered."""
        if self._tracer.on:
            nbytes, now = sum(part.nbytes for part in message.stored), time.perf_counter()
            tier: Literal["warm", "cold"] = "warm" if message.stored else "cold"
            self._tracer.tell(RestoreEnded(now, message.agent_id, nbytes, tier))

    def fault(self, error: BaseException) -> None:
        """Tell listeners that the device failed."""
        if self._tracer.on:
            fault = Fault(time.perf_counter(), "device", "", type(error).__name__)
            self._tracer.tell(fault)

    def _pass_on(self, event: Begun | Tokens | Aborted) -> None:
        self._to_agent(event.agent_id, event)

    def _finished(self, event: Finished) -> None:
        finished = TurnFinished(event, self._gpu)
        if not self._to_agent(event.request.agent_id, finished):
            finished.reject()

    def _load(self, event: KVNeeded) -> None:
        agent_id, fingerprint = event.agent_id, self._fingerprint()
        if self._tracer.on:
            self._tracer.tell(RestoreBegan(time.perf_counter(), agent_id))
        asked = LoadKV(agent_id, fingerprint, self._gpu)
        if not send(self.persistence, asked):
            asked.reject()

    def _progress(self, event: Progress) -> None:
        if self._on_progress is None:
            return
        try:
            self._on_progress(event.agent_id, event.done, event.total)
        except Exception:
            logger.exception("the progress callback raised; it is not called again")
            self._on_progress = None

    def _to_agent(self, agent_id: str, message: Any) -> bool:
        agent = self.agents.get(agent_id)
        return agent is not None and send(agent, message)
