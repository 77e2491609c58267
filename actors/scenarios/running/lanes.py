"""An agent in one branch: its steps in their order, and who performs them. The runner's thread."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Protocol

from kvactors.actors.scenarios.files.cast import Member
from kvactors.actors.scenarios.journal.file import Record
from kvactors.actors.scenarios.journal.records import Heard
from kvactors.actors.scenarios.running.steps import Step

__all__ = ["Agents", "Lane"]


@dataclass(eq=False, slots=True)
class Lane:
    """One agent in one branch: its steps in their order. `memory` counts the exchanges that it
    remembers by the journal; `told` are the texts that it had heard before it first answered, at
    the step `answered` (0: not yet)."""

    name: str
    member: Member
    open: bool
    asleep: bool = False  # its next step waits for steps of others
    held: Step | None = None  # the step whose behaviour has it now
    waiting: deque[Step] = field(default_factory=deque)
    flying: deque[Step] = field(default_factory=deque)
    unread: list[SimpleNamespace] = field(default_factory=list)
    memory: int = 0
    told: list[str] = field(default_factory=list)
    answered: int = 0
    origin: str | None = None  # the lane that it was forked from

    @property
    def awake(self) -> bool:
        """Whether it may have a step that can begin."""
        return self.open and not self.asleep and bool(self.waiting)

    def remember(self, step: Step, record: Record) -> None:
        """A `step` of it has ended with a `record`."""
        memory = getattr(record, "memory", self.memory)
        if isinstance(record, Heard) and not self.answered:
            assert step.call is not None
            self.told.append(step.call.text)
        elif memory > self.memory or step.kind == "probe":
            self.answered = self.answered or record.step
        self.memory = memory

    def begin_as(self, other: "Lane") -> None:
        """It is there, with what an`other` remembers."""
        self.memory, self.answered, self.told = other.memory, other.answered, list(other.told)
        self.open = True


class Agents(Protocol):
    """Who performs steps. Outcomes come by themselves, to `Runner.take`."""

    def perform(self, lane: Lane | None, step: Step) -> None:
        """Begin a step; its outcome comes later."""

    def resume(self, lanes: Iterable[Lane], model: str | None) -> None:
        """Bring the agents of these lanes to where the journal has them, and the `model` that it
        has swapped in, if it has."""
