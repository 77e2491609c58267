"""A run goes on otherwise from one of its steps, in another folder."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from puppets import TALK, answers, open_system

from kvactors.actors import AgentSystem
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.scenario import Scenario, compare_runs, fork_run

Write = Callable[..., Path]


@pytest.fixture
def system(tmp_path: Path) -> Iterator[AgentSystem]:
    """Puppets."""
    with open_system(tmp_path / "store") as opened:
        yield opened


def test_a_fork_goes_on_otherwise_with_the_memory_of_that_step(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    [run] = Scenario.load(write(TALK)).run(system, out=tmp_path / "out")
    step = next(turn.step for turn in run.turns if turn.phase == "second")
    before = system.spawn("seed-0/bob").transcript().token_ids

    [fork] = fork_run(
        tmp_path / "out", step, tmp_path / "fork", settings=["parameters.mood=sad"], system=system
    )

    assert answers(fork)[:3] == answers(run)[:3]
    assert fork.turns[:3] == run.turns[:3]
    prompts = [turn.prompt for turn in fork.turns if turn.verb == "ask"]
    assert prompts == ["What was said, sad?"] * 4
    assert all(turn.prefilled_tokens < 256 for turn in fork.turns[3:])
    assert fork.header.fork_of == f"seed-0@{step}"
    assert system.spawn("seed-0/bob").transcript().token_ids == before
    differences = compare_runs(tmp_path / "out", tmp_path / "fork")["seed-0"]
    assert (differences[0].step, differences[0].what) == (step, "prompt")


def test_a_fork_does_not_change_what_was_before_it(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    Scenario.load(write(TALK)).run(system, out=tmp_path / "out")

    with pytest.raises(InvalidScenario, match="the persona of anna is where its memory begins"):
        fork_run(tmp_path / "out", 5, tmp_path / "a", settings=["agents.anna.persona=Other."])
    settings = ["phases.first.steps.0.say=Other."]
    with pytest.raises(InvalidScenario, match="step 1 of the journal is not what"):
        fork_run(tmp_path / "out", 5, tmp_path / "b", settings=settings)
    assert not (tmp_path / "b").exists()
