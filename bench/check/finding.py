"""What one check found, and how it is taken down: timed, and never crashing the others."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = ["Answer", "Finding", "Verdict", "look"]

Verdict = Literal["held", "allowed", "violated", "measured", "unmeasured", "skipped"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a check says. "allowed": not to the bit, but within what a GPU is promised. Figures
    are "measured" or "unmeasured", which is no violation: the peer may be what fails."""

    verdict: Verdict
    detail: str
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """An answer with the name of its check and the seconds it took."""

    name: str
    answer: Answer
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """The same for programs; null is a number that is none, or has no end."""
        found = {"name": self.name, **asdict(self.answer), "seconds": round(self.seconds, 2)}
        numbers = self.answer.numbers.items()
        return {**found, "numbers": {n: v if math.isfinite(v) else None for n, v in numbers}}


def look(name: str, check: Callable[[], Answer], *, raising: Verdict = "violated") -> Finding:
    """Run the `check` called `name`. What raises is found to be `raising`, and says of what."""
    begin = time.perf_counter()
    try:
        answer = check()
    except Exception as error:
        said = " ".join(str(error).split())
        answer = Answer(raising, f"{type(error).__name__}: {said}")
    return Finding(name, answer, time.perf_counter() - begin)
