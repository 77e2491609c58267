"""What has been answered so far, as texts and conditions ask for it. The runner's thread."""

from collections.abc import Iterator, Mapping
from typing import Any

from kvactors.actors.scenarios.running.steps import Branch, NotYet, Step

__all__ = ["Answers"]


class Answers:
    """The steps that answer, in the order of the file."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str | None, str | None], list[Step]] = {}

    def add(self, step: Step) -> None:
        """A step that the model is going to answer; a probe is outside of the story."""
        if step.asks and step.kind != "probe":
            for phase in (None, step.phase):
                for agent in (None, step.agent):
                    self._steps.setdefault((phase, agent), []).append(step)

    def queries(self, branch: Branch, before: int | None) -> Mapping[str, Any]:
        """What a text of this `branch` may call; it sees the steps `before` a number, all of those
        there are if it is None."""

        def answers(
            phase: str | None = None,
            agent: str | None = None,
            step: str | None = None,
            round: int | None = None,
        ) -> list[str]:
            found = self._find(branch, before, (phase, agent), {"name": step, "round": round})
            steps = list(found)
            if open_ := [one for one in steps if not one.ended]:
                raise NotYet(open_)
            return [one.text for one in steps if one.text is not None]

        def answer(*args: Any, **filters: Any) -> str:
            return (answers(*args, **filters) or [""])[-1]

        def count(text: str, *args: Any, **filters: Any) -> int:
            return answers(*args, **filters).count(text)

        return {"answers": answers, "answer": answer, "count": count}

    def _find(
        self,
        branch: Branch,
        before: int | None,
        key: tuple[str | None, str | None],
        filters: Mapping[str, Any],
    ) -> Iterator[Step]:
        wanted = {name: value for name, value in filters.items() if value is not None}
        for step in self._steps.get(key, ()):
            if before is not None and step.number >= before:
                break
            if branch.sees(step.branch.path) and all(
                getattr(step, name) == value for name, value in wanted.items()
            ):
                yield step
