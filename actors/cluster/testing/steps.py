"""Where a fault may strike: processes come to steps, and faults wait there."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from kvactors.actors.cluster.testing.machines.process import Process

__all__ = ["Armed", "Steps"]


@dataclass(slots=True)
class Armed:
    """A fault that waits for a process to come to a step."""

    step: str
    do: Callable[[Process], None]
    after: int = 0
    """Not at the first times."""


class Steps:
    """Of a world: `armed` faults strike there, and `say` is told of it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.armed: list[Armed] = []
        self.reached: Counter[str] = Counter()
        """How often processes came to each."""
        self.struck: Counter[str] = Counter()
        """How often each fault struck, wherever."""

    def at(self, process: Process, what: str) -> None:
        """A `process` of a machine is at a step."""
        self.reached[what] += 1
        for armed in self.armed:
            if armed.step == what:
                if armed.after > 0:
                    armed.after -= 1
                    continue
                self.armed.remove(armed)
                self._say(f"armed at {what} of {process.name}")
                self.struck[f"at {what}"] += 1
                armed.do(process)
                return
