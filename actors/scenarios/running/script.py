"""A scenario with one seed and one value for each parameter: what one run runs. Any thread."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import xxhash

from kvactors.actors.scenarios.files.cast import ALL, Cast, Member, make_cast
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.files.schema import ScenarioWords
from kvactors.actors.scenarios.running.steps import Step
from kvactors.core.schedule.sampling import Sampling

__all__ = ["Point", "Script", "points"]

# What a folder or an agent's id need not escape.
PLAIN = re.compile(r"[^A-Za-z0-9._-]+")
# Characters of a label; a file name has 255, and an agent's id begins with it.
LONGEST = 100


@dataclass(frozen=True, slots=True)
class Point:
    """A seed and a value for each parameter, and the `label` of the run that has them."""

    label: str
    seed: int
    parameters: Mapping[str, Any]


def points(words: ScenarioWords) -> Iterator[Point]:
    """Seeds times the values of parameters that have several, in their order. No two have the same
    label: one that another would have, or that is long, ends with a digest of its values."""
    lists = {n: v if isinstance(v, tuple) else (v,) for n, v in words.parameters.items()}
    named: list[tuple[str, dict[str, Any]]] = []
    for values in itertools.product(*lists.values()):
        parameters = dict(zip(lists, values, strict=True))
        varied = [f"{n}-{v}" for n, v in parameters.items() if len(lists[n]) > 1]
        named.append(("".join("," + PLAIN.sub("_", part) for part in varied), parameters))
    # Also where a file system tells no small letters from capitals.
    taken = Counter(name.casefold() for name, _ in named)
    for seed in words.seeds:
        for name, parameters in named:
            label = f"seed-{seed}{name}"
            if taken[name.casefold()] > 1 or len(label) > LONGEST:
                digest = xxhash.xxh32_hexdigest(repr(sorted(parameters.items())).encode())
                label = f"{label[:LONGEST]}-{digest}"
            yield Point(label, seed, parameters)


@dataclass(frozen=True, slots=True)
class Script:
    """All of one run."""

    words: ScenarioWords
    point: Point
    cast: Cast

    @classmethod
    def of(cls, words: ScenarioWords, point: Point, folder: Path, problem: Any) -> "Script":
        """The script of the scenario of these `words`, whose tables are in `folder`, at a `point`;
        `problem` makes the error of a place. Raises InvalidScenario, OSError."""
        base = {**point.parameters, "seed": point.seed, "branch": ""}
        return cls(words, point, make_cast(words, folder, base, problem))

    @property
    def variables(self) -> dict[str, Any]:
        """What every template may name."""
        return {**self.point.parameters, "seed": self.point.seed}

    def most_turns(self) -> int:
        """Turns that there are at most; probes of `each` item count once."""
        turns, branches = 0, 1
        for phase in self.words.phases:
            branches *= len(phase.fork) or 1
            who = len(self.cast.resolve(phase.who, InvalidScenario))
            asking = sum(step.verb != "tell" for step in phase.steps)
            turns += branches * phase.rounds * who * asking
            for probe in self.words.probes:
                if {ALL, phase.name} & set(probe.after):
                    turns += branches * len(self.cast.resolve(probe.who, InvalidScenario))
        return turns

    def sampling(self, member: Member, step: Step) -> Sampling:
        """How an answer is drawn: what the step says, else the agent, else the scenario."""
        choices = step.call.choices if step.call is not None else ()
        if step.call is not None and step.call.sampling is not None:
            return replace(step.call.sampling, seed=self.point.seed, choices=choices)
        merged: dict[str, Any] = {"seed": self.point.seed}
        for words in (self.words.sampling, member.sampling, step.sampling):
            merged |= words.model_dump(exclude_unset=True)
        return Sampling(**merged, choices=choices)
