"""An actor that keeps what it gets, and work in its prompt lane."""

from dataclasses import dataclass
from typing import Any

from kvactors.actors.runtime.dispatcher import Dispatcher, SystemActor

__all__ = ["Recorder", "Work"]


@dataclass(frozen=True)
class Work:
    number: int
    in_prompt_lane: bool = True


class Recorder(SystemActor):
    def __init__(self, dispatcher: Dispatcher) -> None:
        super().__init__()
        self.dispatcher = dispatcher
        self.seen: list[Any] = []
        self.events: list[str] = []

    def on_start(self) -> None:
        self.events.append("start")

    def on_stop(self) -> None:
        self.events.append("stop")

    def on_failure(self, *_info: Any) -> None:
        self.events.append("failure")

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, BaseException):
            raise message
        if callable(message):
            return message(self)
        self.seen.append(message)
        return list(self.seen)
