"""What the parts of a system tell of their work: structured events, without any text of a turn.

While nobody listens, a place that could tell something tests one attribute and goes on. A
listener is called at once, on the thread where it happened: it must not block, and one that
raises is not called again. Times are seconds of `time.perf_counter`, also in virtual time, so
that listening changes nothing of what is listened to.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "DecodeStep",
    "Evicted",
    "Fault",
    "Listener",
    "PrefillStep",
    "RestoreBegan",
    "RestoreEnded",
    "SaveBegan",
    "SaveEnded",
    "TraceEvent",
    "Tracer",
    "TurnEnded",
    "TurnQueued",
    "TurnStarted",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TurnQueued:
    """A prompt was accepted: a turn, a rewind or a fork. On the asker's thread."""

    at: float
    agent_id: str
    serial: int


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The engine admitted a turn, which begins with `reused` tokens of its agent's KV. Again if
    it had given way."""

    at: float
    agent_id: str
    serial: int
    cache: str
    reused: int


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """Whoever waited for a turn has been told. `reason`: "stop", "length", "cancelled", "done"
    for what is no turn, or the name of the error's class. `usage` and `timing` are those of the
    reply, empty without one."""

    at: float
    agent_id: str
    serial: int
    reason: str
    failed: bool
    cache: str
    usage: Mapping[str, int]
    timing: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RestoreBegan:
    """The store is asked for an agent's KV."""

    at: float
    agent_id: str


@dataclass(frozen=True, slots=True)
class RestoreEnded:
    """It answered: with `nbytes` of KV ("warm"), or with none ("cold")."""

    at: float
    agent_id: str
    nbytes: int
    tier: Literal["warm", "cold"]


@dataclass(frozen=True, slots=True)
class PrefillStep:
    """One forward over prompts: tokens [start, end) of each agent in `parts`. Each of `agent_ids`
    got its first token of it, too."""

    began: float
    at: float
    parts: tuple[tuple[str, int, int], ...]
    agent_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One step of `batch` rows; each of `agent_ids` got a token. Steps run one ahead, so that
    the first of a row gives none. Scoring a choice is a step of one row that gives none. Of the
    `drafted` tokens that it checked, so many were `accepted`: an agent has one token more for each
    of its own. `sources` says for each source how many of both: "own" is what an agent said or was
    told before, "others" replies of others, "model" a draft model."""

    began: float
    at: float
    batch: int
    agent_ids: tuple[str, ...]
    drafted: int = 0
    accepted: int = 0
    sources: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SaveBegan:
    """A group of saves is written, this agent's among them: `nbytes` of KV, and its turns."""

    at: float
    agent_id: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class SaveEnded:
    """An agent's save is on disk, or failed."""

    at: float
    agent_id: str
    nbytes: int
    ok: bool


@dataclass(frozen=True, slots=True)
class Evicted:
    """An idle agent's KV left memory, or the disk (whose bytes are not counted one by one)."""

    at: float
    agent_id: str
    nbytes: int
    tier: Literal["memory", "disk"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something failed. `error` is the name of its class: a message may quote a prompt.
    `agent_id` is empty where no one agent is meant."""

    at: float
    where: Literal["step", "device", "disk", "behaviour"]
    agent_id: str
    error: str


TraceEvent = (
    TurnQueued
    | TurnStarted
    | TurnEnded
    | RestoreBegan
    | RestoreEnded
    | PrefillStep
    | DecodeStep
    | SaveBegan
    | SaveEnded
    | Evicted
    | Fault
)

Listener = Callable[[TraceEvent], object]


class Tracer:
    """Passes events to listeners. `on` while anybody listens, `steps` while anybody wants each
    step of the engine: test it, then make the event. Any thread."""

    __slots__ = ("_listeners", "_lock", "on", "steps")

    def __init__(self) -> None:
        self.on = self.steps = False
        self._listeners: tuple[tuple[Listener, bool], ...] = ()
        self._lock = threading.Lock()

    def listen(self, listener: Listener, *, steps: bool = True) -> None:
        """Call for every event from now on, for those of steps only if `steps`."""
        with self._lock:
            self._set((*self._listeners, (listener, steps)))

    def leave(self, listener: Listener) -> None:
        """Call no more."""
        with self._lock:
            self._set(tuple(entry for entry in self._listeners if entry[0] != listener))

    def tell(self, event: TraceEvent) -> None:
        """Call the listeners."""
        of_step = isinstance(event, PrefillStep | DecodeStep)
        for listener, steps in self._listeners:
            if steps or not of_step:
                try:
                    listener(event)
                except Exception:
                    logger.exception("a listener raised; it is not called again")
                    self.leave(listener)

    def _set(self, listeners: tuple[tuple[Listener, bool], ...]) -> None:
        self._listeners = listeners
        self.on, self.steps = bool(listeners), any(steps for _, steps in listeners)
