"""What has been answered so far, as texts and conditions ask for it. The runner's thread."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from kvactors.actors.scenarios.running.steps import Branch, NotYet, Step

__all__ = ["Answers"]


# Phase, agent and round; None: any.
_Key = tuple[str | None, str | None, int | None]


@dataclass(slots=True)
class _Ended:
    """Of the steps of a key, what has been read of those that a branch sees: the first `read` ones,
    all of which have ended, and those of them that have a text."""

    read: int = 0
    steps: list[Step] = field(default_factory=list)


class Answers:
    """The steps that answer, in the order of the file. What has ended is looked at once: a stop
    rule asks each round for all that was answered since the beginning."""

    def __init__(self) -> None:
        self._steps: dict[_Key, list[Step]] = {}
        self._ended: dict[tuple[_Key, str, str | None], _Ended] = {}

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
            ended, rest = self._seen(branch, before, (phase, agent, round), step)
            if open_ := [one for one in rest if not one.ended]:
                raise NotYet(open_)
            return [one.text for one in (*ended, *rest) if one.text is not None]

        def answer(
            phase: str | None = None,
            agent: str | None = None,
            step: str | None = None,
            round: int | None = None,
        ) -> str:
            ended, rest = self._seen(branch, before, (phase, agent, round), step)
            for one in reversed(rest):
                if not one.ended:
                    raise NotYet([one])
                if one.text is not None:
                    return one.text
            return (ended[-1].text or "") if ended else ""

        def count(text: str, *args: Any, **filters: Any) -> int:
            return answers(*args, **filters).count(text)

        return {"answers": answers, "answer": answer, "count": count}

    def _seen(
        self, branch: Branch, before: int | None, key: _Key, name: str | None
    ) -> tuple[list[Step], list[Step]]:
        """Those that a text sees: first of what has ended those with a text, then all others."""
        steps = self._steps.get(key, [])
        known = self._ended.setdefault((key, branch.path, name), _Ended())

        def seen(step: Step) -> bool:
            return branch.sees(step.branch.path) and name in (None, step.name)

        end = len(steps) if before is None else bisect_left(steps, before, key=_number)
        while known.read < end and ((step := steps[known.read]).ended or not seen(step)):
            known.read += 1
            if step.text is not None and seen(step):
                known.steps.append(step)
        if before is not None and end < known.read:
            return known.steps[: bisect_left(known.steps, before, key=_number)], []
        return known.steps, [step for step in steps[known.read : end] if seen(step)]


def _number(step: Step) -> int:
    return step.number
