"""Health: what the system says of itself while its actors may be busy or gone. Any thread."""

import time
from dataclasses import dataclass
from typing import Literal

__all__ = ["Health", "Vitals"]

State = Literal["ok", "rebuilding", "stalled", "dead"]


@dataclass(frozen=True, slots=True)
class Health:
    """`state` of the engine: "rebuilding" after a fatal error of the device, "stalled" when a
    step takes longer than the watchdog allows, "dead" when nothing more will be answered.
    `step_seconds` is how long the step that runs has taken, 0 if none does; `error` the last
    one that ended or rebuilt the engine. `storage` is "failing" while turns wait in memory that
    the disk has refused, and from when it refuses KV until a group of saves succeeds;
    `storage_error` says then what it said, the store's path and the bytes that are free there.
    `unsaved_bytes` wait for it in all. `waiting`: who has waited for another agent's answer for
    longer than the watchdog allows."""

    state: State
    step_seconds: float
    rebuilds: int
    error: str
    storage: Literal["ok", "failing"]
    unsaved_bytes: int
    storage_error: str
    waiting: tuple[str, ...]


class Vitals:
    """What the GPU actor notes about itself; single words, so that no lock is needed."""

    def __init__(self) -> None:
        self.state: State = "ok"
        self.rebuilds = 0
        self.error = ""
        self.hot_bytes = 0
        self.streaming = False
        self._step_began = 0.0

    def rebuild_begins(self, error: BaseException) -> None:
        """A fatal error: the engine is built anew."""
        self.step_ended()
        self.state, self.error = "rebuilding", f"{type(error).__name__}: {error}"

    def rebuild_ended(self) -> None:
        """It goes on."""
        self.state, self.rebuilds = "ok", self.rebuilds + 1

    def step_begins(self) -> None:
        """A step starts now."""
        self._step_began = time.monotonic()

    def step_ended(self) -> None:
        """No step runs."""
        self._step_began = 0.0

    @property
    def step_seconds(self) -> float:
        """How long the step that runs has taken; 0 if none does."""
        began = self._step_began
        return time.monotonic() - began if began else 0.0
