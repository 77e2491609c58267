"""Which step of a walk may be begun next. The runner's thread."""

from collections.abc import Iterator, Mapping
from typing import Any

from kvactors.actors.scenarios.running.steps import NotYet, Step, when_ended
from kvactors.actors.scenarios.running.walk import Walk

__all__ = ["WHOLE", "Layout"]

# Steps that may be laid out and not have ended.
MOST_OPEN = 50_000
# Those of the run as a whole: all before them has ended, and nothing behind them begins.
WHOLE = ("swap", "restart", "stop", "end")


class Layout:
    """The steps of a `walk`, whose templates may name `variables`, as far as they are known. With
    `lockstep` no round begins before all of the last one has ended."""

    def __init__(self, walk: Walk, variables: Mapping[str, Any], *, lockstep: bool) -> None:
        self._plan = walk
        self._walk: Iterator[Step | NotYet] = iter(walk.steps(variables))
        self._walking = True
        self._held: Step | None = None
        self._lockstep = lockstep
        self._behind_whole = False
        self._round: tuple[str, int, str] | None = None

    def next(self, open_: int) -> Step | None:
        """The next step, while so many have not ended (`open_`); None if it has to wait."""
        if open_ and (self._held is not None or self._behind_whole):
            return None
        step, self._held = self._held or self._walk_on(open_), None
        if step is not None and open_ and self._waits(step):
            self._held, step = step, None
        if step is not None:
            self._behind_whole, self._round = step.kind in WHOLE, _round_of(step)
        return step

    def _walk_on(self, open_: int) -> Step | None:
        """The next step of the walk, if it is known."""
        while self._walking and open_ < MOST_OPEN:
            found = next(self._walk, None)
            if isinstance(found, Step):
                return found
            self._walking = False
            if found is not None:
                when_ended(found.steps, self._go_on)
        return None

    def give_up(self, reason: str) -> None:
        """Nothing comes any more but the run's end."""
        self._walk, self._walking, self._held = iter(self._plan.ending(reason)), True, None

    def _waits(self, step: Step) -> bool:
        """Whether a step begins when nothing is open."""
        return step.kind in WHOLE or (self._lockstep and self._round != _round_of(step))

    def _go_on(self) -> None:
        self._walking = True


def _round_of(step: Step) -> tuple[str, int, str]:
    return step.phase, step.round, step.branch.path
