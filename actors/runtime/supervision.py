"""What becomes of a behaviour that raises: restart it, stop it, or leave it to its parent."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from kvactors.core.errors import InvalidConfig
from kvactors.core.numbers import number, whole

__all__ = ["DeadLetter", "OnError", "Restarts", "Supervision", "Terminated"]

# Doubled more often, a float has no room for it.
MOST_DOUBLED = 1000
OnError = Literal["restart", "rewind", "stop", "escalate"]


@dataclass(frozen=True, slots=True)
class Supervision:
    """How a behaviour that raised goes on. The message that it raised on is lost; one that was
    asked is answered with the error.

    `on_error`: "restart" goes on with the agent's memory as it is; "rewind" forgets the failed
    message's turns first, up to one that somebody else asked for since; "stop" ends the
    behaviour; "escalate" ends it and lets its parent fail with the same error. A restart
    waits `backoff` seconds, twice as long each time in a row up to `longest_backoff`; more than
    `most` within `window` seconds end the behaviour. Raises InvalidConfig.
    """

    on_error: OnError = "stop"
    backoff: float = 0.1
    longest_backoff: float = 30.0
    most: int = 5
    window: float = 60.0

    def __post_init__(self) -> None:
        if self.on_error not in get_args(OnError):
            raise InvalidConfig(
                f"on_error is one of {', '.join(get_args(OnError))}, not {self.on_error!r}"
            )
        longest, backoff = number(self.longest_backoff), number(self.backoff)
        if longest is None or not longest >= 0:
            raise InvalidConfig(
                f"longest_backoff must be seconds, at least 0, not {self.longest_backoff!r}"
            )
        if backoff is None or not 0 <= backoff <= longest:
            raise InvalidConfig(f"backoff must be 0 to {longest:g} seconds, not {self.backoff!r}")
        most, window = whole(self.most), number(self.window)
        if most is None or most < 0 or window is None or not window > 0:
            raise InvalidConfig(f"most {self.most!r} within {self.window!r} s cannot be counted")


@dataclass(frozen=True, slots=True)
class Terminated:
    """Delivered to whoever watches an agent when its behaviour has ended. `cause` is None for
    one that was stopped, and where there was none."""

    agent_id: str
    cause: BaseException | None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that nobody handled, and why."""

    message: Any
    sender: str | None
    receiver: str
    reason: str


class Restarts:
    """The restarts of one behaviour, counted against its policy. Owned by its actor."""

    def __init__(self, policy: Supervision) -> None:
        self._policy = policy
        self._times: list[float] = []

    def next(self, now: float) -> float | None:
        """Seconds to wait before a restart at `now`; None if there is none, or were too many."""
        if self._policy.on_error in ("stop", "escalate"):
            return None
        while self._times and self._times[0] <= now - self._policy.window:
            del self._times[0]
        if len(self._times) >= self._policy.most:
            return None
        self._times.append(now)
        doubled = 2.0 ** min(len(self._times) - 1, MOST_DOUBLED)
        return float(min(self._policy.backoff * doubled, self._policy.longest_backoff))

    def words(self, wait: float | None) -> str:
        """What becomes of the behaviour, where `next` said to `wait` so long."""
        if wait is None:
            return "it has ended"
        return f"it goes on in {wait:g} s ({len(self._times)} of {self._policy.most})"
