"""The folder of a run: whenever a process ends, it can be begun again or gone on with."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from puppet_talk import TALK, answers, open_system

from kvactors.actors import AgentSystem
from kvactors.actors.scenarios import folder
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.running.runner import Runner
from kvactors.actors.scenarios.scenario import Scenario, fork_run, replay_run, resume_run

Write = Callable[..., Path]


@pytest.fixture
def system(tmp_path: Path) -> Iterator[AgentSystem]:
    """Puppets."""
    with open_system(tmp_path / "store") as opened:
        yield opened


def killed(*_: Any, **__: Any) -> Any:
    """Nobody tidies up behind it."""
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (folder, "replace_file"),
        (folder.RunFolder, "write"),
        (shutil, "copyfile"),
        (folder.RunFolder, "begin"),
    ],
)
def test_a_folder_that_was_being_made_can_be_made_again(
    write: Write,
    tmp_path: Path,
    system: AgentSystem,
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    name: str,
) -> None:
    write("name,age\nbob,41\n", "people.csv")
    text = TALK.replace("bob: {}", "person: {table: people.csv}")
    scenario, out = Scenario.load(write(text)), tmp_path / "out"

    with monkeypatch.context() as patch:
        patch.setattr(where, name, killed)
        with pytest.raises(KeyboardInterrupt):
            scenario.run(system, out=out)
    with pytest.raises(InvalidScenario, match=r"begin it again|holds no run"):
        resume_run(out, system)
    [run] = scenario.run(system, out=out)

    assert run.ended
    assert (out / "tables/person.csv").read_text() == "name,age\nbob,41\n"
    with pytest.raises(InvalidScenario, match="holds something"):
        scenario.run(system, out=out)


def test_a_half_written_scenario_does_not_keep_a_folder_from_being_made(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/scenario.json.tmp").write_text('{"version"')

    [run] = Scenario.load(write(TALK)).run(system, out=tmp_path / "out")

    assert run.ended


@pytest.mark.parametrize("held", ["notes.txt", "tables", "scenario.json"])
def test_what_is_somebodys_own_is_not_written_over(
    write: Write, tmp_path: Path, system: AgentSystem, held: str
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / held).write_text("mine")

    with pytest.raises(InvalidScenario, match="holds something"):
        Scenario.load(write(TALK)).run(system, out=tmp_path / "out")

    assert (tmp_path / "out" / held).read_text() == "mine"


def test_a_fork_that_was_being_copied_is_not_gone_on_with_and_can_be_made_again(
    write: Write, tmp_path: Path, system: AgentSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    [run] = Scenario.load(write(TALK)).run(system, out=tmp_path / "out")
    step, replay = run.turns[-2].step, Runner.replay

    def half(self: Runner, records: Any) -> None:
        replay(self, list(records)[:2])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "replay", half)
        for copy in (
            lambda: fork_run(tmp_path / "out", step, tmp_path / "fork", system=system),
            lambda: replay_run(tmp_path / "out", tmp_path / "again"),
        ):
            with pytest.raises(KeyboardInterrupt):
                copy()
    for cut in ("fork", "again"):
        with pytest.raises(InvalidScenario, match="was cut off before anything began"):
            resume_run(tmp_path / cut, system)
    [fork] = fork_run(tmp_path / "out", step, tmp_path / "fork", system=system)

    assert answers(fork)[:-2] == answers(run)[:-2]
    assert fork.header.fork_of
