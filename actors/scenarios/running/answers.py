"""What has been answered so far, as texts and conditions ask for it. The runner's thread."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from kvactors.actors.scenarios.running.steps import Branch, NotYet, Step

__all__ = ["Answers"]


# Phase, agent and round; None: any.
_Key = tuple[str | None, str | None, int | None]


class Answers:
    """The steps that answer, in the order of the file."""

    def __init__(self) -> None:
        self._steps: dict[_Key, list[Step]] = {}

    def add(self, step: Step) -> None:
        """A step that the model is going to answer; a probe is outside of the story."""
        if step.asks and step.kind != "probe":
            for key in product((None, step.phase), (None, step.agent), (None, step.round)):
                self._steps.setdefault(key, []).append(step)

    def queries(self, branch: Branch, before: int | None) -> Mapping[str, Any]:
        """What a text of this `branch` may call; it sees the steps `before` a number, all of those
        there are if it is None."""

        def answers(
            phase: str | None = None,
            agent: str | None = None,
            step: str | None = None,
            round: int | None = None,
        ) -> list[str]:
            steps = list(self._backwards(branch, before, (phase, agent, round), step))[::-1]
            if open_ := [one for one in steps if not one.ended]:
                raise NotYet(open_)
            return [one.text for one in steps if one.text is not None]

        def answer(
            phase: str | None = None,
            agent: str | None = None,
            step: str | None = None,
            round: int | None = None,
        ) -> str:
            for one in self._backwards(branch, before, (phase, agent, round), step):
                if not one.ended:
                    raise NotYet([one])
                if one.text is not None:
                    return one.text
            return ""

        def count(text: str, *args: Any, **filters: Any) -> int:
            return answers(*args, **filters).count(text)

        return {"answers": answers, "answer": answer, "count": count}

    def _backwards(
        self, branch: Branch, before: int | None, key: _Key, name: str | None
    ) -> Iterator[Step]:
        """Those that a text sees, the last one first."""
        steps = self._steps.get(key, [])
        end = len(steps) if before is None else bisect_left(steps, before, key=_number)
        for place in range(end - 1, -1, -1):
            step = steps[place]
            if branch.sees(step.branch.path) and name in (None, step.name):
                yield step


def _number(step: Step) -> int:
    return step.number
