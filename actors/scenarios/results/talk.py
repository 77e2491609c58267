"""Who was heard by whom, and when things happened. Pure, over records: any thread."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence

from kvactors.actors.scenarios.journal.records import Run, Turn

__all__ = ["conversations", "process_begins", "seconds_of"]


def conversations(runs: Sequence[Run]) -> Counter[tuple[str, str]]:
    """How often each speaker was heard by each other agent, in all runs: what it said to all who
    listened, and what it told one alone."""
    pairs: Counter[tuple[str, str]] = Counter()
    for run in runs:
        pairs.update((turn.agent, hearer) for turn in run.turns for hearer in turn.heard_by)
        pairs.update((heard.speaker, heard.agent) for heard in run.heard if heard.speaker)
    return Counter({pair: times for pair, times in pairs.items() if pair[0] != pair[1]})


def process_begins(run: Run) -> Callable[[Turn], float]:
    """When, in seconds of the run, the process began that took a turn. A run that was read from no
    journal has no order but that of steps."""
    begun = sorted((e.step, e.at) for e in run.events if e.kind == "process") or [(0, 0.0)]
    steps = [step for step, _ in begun]

    def begins(turn: Turn) -> float:
        at = run.process_at.get((turn.step, turn.part))
        return begun[max(0, bisect_right(steps, turn.step) - 1)][1] if at is None else at

    return begins


def seconds_of(run: Run) -> float:
    """From the begin of a run to the end of its last turn."""
    begins = process_begins(run)
    return max((begins(turn) + turn.begun + turn.total for turn in run.turns), default=0.0)
