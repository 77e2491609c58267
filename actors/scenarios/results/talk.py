"""Who was heard by whom, and when things happened. Pure, over records: any thread."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence

from kvactors.actors.scenarios.journal.records import Run

__all__ = ["conversations", "process_begins", "seconds_of"]


def conversations(runs: Sequence[Run]) -> Counter[tuple[str, str]]:
    """How often each speaker was heard by each other agent, in all runs: what it said to all who
    listened, and what it told one alone."""
    pairs: Counter[tuple[str, str]] = Counter()
    for run in runs:
        pairs.update((turn.agent, hearer) for turn in run.turns for hearer in turn.heard_by)
        pairs.update((heard.speaker, heard.agent) for heard in run.heard if heard.speaker)
    return Counter({pair: times for pair, times in pairs.items() if pair[0] != pair[1]})


def process_begins(run: Run) -> Callable[[int], float]:
    """When, in seconds of the run, the process began that a step was run in."""
    begun = sorted((e.step, e.at) for e in run.events if e.kind == "process") or [(0, 0.0)]
    steps = [step for step, _ in begun]
    return lambda step: begun[max(0, bisect_right(steps, step) - 1)][1]


def seconds_of(run: Run) -> float:
    """From the begin of a run to the end of its last turn."""
    begins = process_begins(run)
    return max((begins(turn.step) + turn.begun + turn.total for turn in run.turns), default=0.0)
