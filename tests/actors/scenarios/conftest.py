"""Scenarios whose agents answer at once, in any order that a test wants: no model is loaded."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from seeded import bug, seeded

from kvactors.actors.scenarios.files.document import read_document
from kvactors.actors.scenarios.folder import check_script
from kvactors.actors.scenarios.journal.file import Record
from kvactors.actors.scenarios.journal.reading import run_of
from kvactors.actors.scenarios.journal.records import Run, Turn
from kvactors.actors.scenarios.results import write as results
from kvactors.actors.scenarios.running.lanes import Lane
from kvactors.actors.scenarios.running.outcomes import (
    Failed,
    Happened,
    Outcome,
    Replied,
    spoken,
)
from kvactors.actors.scenarios.running.runner import Runner
from kvactors.actors.scenarios.running.script import Script, points
from kvactors.actors.scenarios.running.steps import Step
from kvactors.actors.turns.reply import Reply, Timing, Usage

Write = Callable[..., Path]


@bug(results, "plotting")
def without_matplotlib(true: Any) -> Any:
    return lambda: False


@pytest.fixture
def drawn() -> None:
    """For a test that wants the pictures of runs: they take longer than most runs."""


@pytest.fixture(autouse=True)
def _undrawn(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing else draws any."""
    with nullcontext() if "drawn" in request.fixturenames else seeded(without_matplotlib):
        yield


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file of a scenario."""

    def write_file(text: str, name: str = "scenario.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


class Play:
    """One run of a scenario, whose agents answer by `answer(agent, prompt)`, in an order that a
    seed draws. `told` has what each agent was told, in its order; `open_behind` how many steps
    were under way when one of the whole run ended, by its kind; `most_at_once` how many of one
    agent were, at most."""

    def __init__(self, script: Script, answer: Callable[[str, str], str]) -> None:
        self.script = script
        self.records: list[Record] = []
        self.told: dict[str, list[str]] = {}
        self.open_behind: dict[str, int] = {}
        self.most_at_once = 0
        self._answer = answer
        self._begun: list[tuple[Step, Outcome]] = []
        self._lanes: dict[str, list[Step]] = {}

    def perform(self, lane: Lane | None, step: Step) -> None:
        """Begin a step."""
        self._begun.append((step, self._outcome(step)))
        at_once = sum(begun.lane == step.lane for begun, _ in self._begun)
        self.most_at_once = max(self.most_at_once, at_once)
        if step.call is not None and step.failed is None:
            self.told.setdefault(step.lane, []).append(step.call.text)

    def resume(self, lanes: Iterable[Lane], model: str | None) -> None:
        """Nothing is kept."""

    def run(self, *, order: int = 0, lockstep: bool = False, before: Iterable[Record] = ()) -> Run:
        """Run it, behind the records of `before`."""
        random = Random(order)
        runner = Runner(self.script, self.records.append, lockstep=lockstep)
        runner.replay(before)
        if runner.ended != "end":
            runner.go_on(self)
        while self._begun:
            lanes = {step.lane: (step, outcome) for step, outcome in reversed(self._begun)}
            taken = random.choice(sorted(lanes.values(), key=lambda pair: pair[0].number))
            self._begun.remove(taken)
            if taken[0].lane == "":
                self.open_behind[taken[0].kind] = len(self._begun)
            runner.take(*taken)
            if runner.ended == "restart":
                runner.go_on(self)
        assert runner.ended == "end", "it stands still"
        return self.result

    @property
    def result(self) -> Run:
        """The run as its records have it."""
        header = SimpleNamespace(label=self.script.point.label)
        return run_of(header, self.records)  # type: ignore[arg-type]

    def _outcome(self, step: Step) -> Outcome:
        if step.failed is not None:
            return Failed(*step.failed)
        if step.said is not None:
            return spoken(step.said, 0.0)
        if step.lane == "" or step.kind == "fork":
            return Happened(0.0)
        assert step.call is not None
        text = "" if step.kind == "hear" else self._answer(step.agent, step.call.text)
        if text.startswith("!"):
            return Failed("TurnFailed", text)
        if step.call.choices:
            text = step.call.choices[0] if text not in step.call.choices else text
        return Replied(_reply(text, step.call.choices), 0.0)


def _reply(text: str, choices: tuple[str, ...]) -> Reply:
    usage, timing = Usage(10, 8, 2, 3, 0), Timing(0.0, 0.0, 0.001, 0.002, 0.003)
    kept: Any = None
    scores = dict.fromkeys(choices, -1.0) or None
    return Reply(text, (), "stop", "hot", None, usage, timing, kept, kept, scores, answer=text)


@pytest.fixture
def play(write: Write) -> Callable[..., Play]:
    """Makes the play of a scenario's text; agents say their name and prompt, if not otherwise."""

    def make(
        text: str,
        answer: Callable[[str, str], str] = lambda agent, prompt: f"{agent} of {prompt}",
        *settings: str,
    ) -> Play:
        path = write(text)
        document = read_document(path).with_values(settings)
        words = document.check()
        return Play(check_script(words, next(points(words)), path.parent, document.problem), answer)

    return make


def said(run: Run, **wanted: Any) -> list[str]:
    """The answers of those turns."""
    return [
        turn.answer
        for turn in run.turns
        if all(getattr(turn, name) == value for name, value in wanted.items())
    ]


def prompts(run: Run, agent: str) -> list[str]:
    """What an agent was asked."""
    return [turn.prompt for turn in run.turns if isinstance(turn, Turn) and turn.agent == agent]
