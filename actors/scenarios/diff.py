"""Where two runs part. Any thread."""

from collections.abc import Iterator
from dataclasses import dataclass

from kvactors.actors.scenarios.journal.records import Failure, Heard, Run, Turn

__all__ = ["Difference", "differences"]

# What is said, and by whom to whom; not how long it took, nor where the KV was.
SAID = (
    *("agent", "phase", "round", "branch", "verb", "name", "prompt", "answer", "heard_by"),
    *("text", "source", "error"),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A `step`, and what of it (`what`) the one run has and the other. Of a run that only one of
    them has: step 0, "run", "there" or "missing"."""

    step: int
    agent: str
    phase: str
    what: str
    left: object
    right: object


def differences(left: Run | None, right: Run | None) -> Iterator[Difference]:
    """Where the run `left` and the run `right` part, in the order of the file; None is one that is
    not there."""
    if left is None or right is None:
        there = ("there", "missing") if right is None else ("missing", "there")
        yield Difference(0, "", "", "run", *there)
        return
    ours, theirs = _steps(left), _steps(right)
    for place in sorted(ours.keys() | theirs.keys()):
        one, other = ours.get(place), theirs.get(place)
        step = place[0]
        if one is None or other is None:
            some = one or other
            assert some is not None
            there = ("there", "missing") if other is None else ("missing", "there")
            yield Difference(step, some.agent, some.phase, type(some).__name__.lower(), *there)
            continue
        for name in SAID:
            pair = getattr(one, name, None), getattr(other, name, None)
            if pair[0] != pair[1]:
                yield Difference(step, one.agent, one.phase, name, *pair)


def _steps(run: Run) -> dict[tuple[int, int], Turn | Heard | Failure]:
    records: list[Turn | Heard | Failure] = [*run.turns, *run.heard, *run.failures]
    return {(record.step, record.part): record for record in records}
