"""One sequence in cells 0, 1, 2, ...: a counter of its length [cache-family, 4.2]."""

from collections.abc import Sequence

from kvactors.core.cache.family.step_plan import PlanOnce, StepPlan
from kvactors.core.errors import CacheFull, InvalidStep
from kvactors.core.numbers import whole

__all__ = ["ContiguousBookkeeping", "check_room", "check_run", "whole_capacity"]


class ContiguousBookkeeping:
    """The token at position p stands in cell p. A step appends; to go back, `rewind` first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = whole_capacity(capacity)
        self._length = 0
        # Before the step under way.
        self._before = 0
        self._once = PlanOnce()

    @property
    def capacity(self) -> int:
        """Cells at most."""
        return self._capacity

    @property
    def length(self) -> int:
        """Tokens held: the position of the next one."""
        return self._length

    def can_extend(self, count: int = 1) -> bool:
        """Whether `count` more tokens have room now."""
        return self._length + count <= self._capacity

    def clear(self) -> None:
        """Forget all of it; no byte is touched."""
        self.rewind(0)

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens: those behind are overwritten by what comes next. Raises
        InvalidStep."""
        kept = whole(length)
        if kept is None or not 0 <= kept <= self._length:
            raise InvalidStep(
                f"a rewind keeps some of the {self._length} tokens held, it cannot grow: {length!r}"
            )
        self.end_step()
        self._length = self._before = kept

    def plan(self, positions: Sequence[int]) -> StepPlan:
        """As Planner says. Raises InvalidStep, CacheFull, changing nothing."""
        return self._once.get(positions, self._append)

    def _append(self, positions: tuple[int, ...]) -> StepPlan:
        check_run(positions, self._length)
        check_room(len(positions), self._length, self._capacity)
        self._before, self._length = self._length, self._length + len(positions)
        return StepPlan.run(self._before, len(positions))

    def end_step(self) -> None:
        """All layers have the plan: the next one is another step's."""
        self._once.forget()
        self._before = self._length

    def take_back(self) -> None:
        """The step under way failed: its tokens are not there."""
        self._length = self._before
        self._once.forget()


def whole_capacity(capacity: int) -> int:
    """A number of cells. Raises InvalidStep for what is none."""
    found = whole(capacity)
    if found is None or found < 1:
        raise InvalidStep(f"a cache has a whole number of cells from 1 on, not {capacity!r}")
    return found


def check_run(positions: Sequence[int], length: int) -> None:
    """Raise InvalidStep unless the positions follow on `length` tokens, and on each other."""
    for index, position in enumerate(positions):
        if position != length + index:
            raise InvalidStep(
                f"token {index} of a step behind {length} tokens is at position {length + index}, "
                f"not {position}: a step appends (to go back, rewind first)"
            )


def check_room(needed: int, held: int, capacity: int) -> None:
    """Raise CacheFull unless `needed` tokens have room beside those that are `held` in cells of
    this `capacity`."""
    if held + needed > capacity:
        raise CacheFull(
            f"a step needs {needed} cells: {held} of {capacity} are held, {capacity - held} free"
        )
