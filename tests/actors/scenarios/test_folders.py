"""The folder of a run: whenever a process ends, it can be begun again or gone on with."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from puppet_talk import TALK, answers, open_system

from kvactors.actors import AgentSystem
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.folder import RunFolder
from kvactors.actors.scenarios.journal.file import Journal
from kvactors.actors.scenarios.journal.reading import read_journal
from kvactors.actors.scenarios.scenario import Scenario, fork_run, resume_run
from kvactors.core.errors import ModelError

Write = Callable[..., Path]


@pytest.fixture
def system(tmp_path: Path) -> Iterator[AgentSystem]:
    """Puppets."""
    with open_system(tmp_path / "store") as opened:
        yield opened


@pytest.mark.parametrize(
    "there",
    [
        (),
        ("scenario.json",),
        ("scenario.json", "tables"),
        ("scenario.json", "tables", "tables/person.csv"),
        ("scenario.json", "tables", "tables/person.csv", "runs.new"),
    ],
)
def test_a_folder_that_was_being_made_can_be_made_again(
    write: Write, tmp_path: Path, system: AgentSystem, there: tuple[str, ...]
) -> None:
    write("name,age\nbob,41\n", "people.csv")
    text = TALK.replace("bob: {}", "person: {table: people.csv}")
    scenario, out = Scenario.load(write(text)), tmp_path / "out"
    RunFolder.create(out, scenario.words, scenario.folder)
    made = sorted(path.relative_to(out).as_posix() for path in out.rglob("*"))
    for name in reversed([name for name in made if name not in there]):
        path = out / name
        path.rmdir() if path.is_dir() else path.unlink()

    with pytest.raises(InvalidScenario, match=r"begin it again|holds no run"):
        resume_run(out, system)
    [run] = scenario.run(system, out=out)

    assert run.ended
    assert (out / "tables/person.csv").read_text() == "name,age\nbob,41\n"
    assert set(there) <= set(made)
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
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    [run] = Scenario.load(write(TALK)).run(system, out=tmp_path / "out")
    step, source = run.turns[-2].step, RunFolder.open(tmp_path / "out")
    half = RunFolder.create(tmp_path / "fork", source.words, source.path, fork_of=source)
    header, records = read_journal(source.journal("seed-0"))
    journal = Journal(half.new_journal("seed-0"), header)
    journal.append(records[0])
    journal.close()

    with pytest.raises(InvalidScenario, match="was cut off before anything began"):
        resume_run(tmp_path / "fork", system)
    [fork] = fork_run(tmp_path / "out", step, tmp_path / "fork", system=system)

    assert answers(fork)[:-2] == answers(run)[:-2]
    assert fork.header.fork_of


@pytest.mark.parametrize(("cut_off", "other"), [("x/fork", "y/fork"), ("a fork", "a_fork")])
def test_a_fork_that_was_cut_off_before_it_had_agents_takes_none_of_another_fork(
    write: Write, tmp_path: Path, system: AgentSystem, cut_off: str, other: str
) -> None:
    [run] = Scenario.load(write(TALK)).run(system, out=tmp_path / "out")
    step = run.turns[-2].step

    def cut(_most: int, _record: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fork_run(tmp_path / "out", step, tmp_path / cut_off, system=system, watch=cut)
    settings = ["phases.second.rounds=4"]
    fork_run(tmp_path / "out", step, tmp_path / other, settings=settings, system=system)
    before = {known.agent_id: remembered(system, known.agent_id) for known in system.known_agents()}
    [first] = resume_run(tmp_path / cut_off, system)

    assert first.ended
    assert before == {agent_id: remembered(system, agent_id) for agent_id in before}


def remembered(system: AgentSystem, agent_id: str) -> tuple[int, ...]:
    """All that an agent remembers."""
    return tuple(system.spawn(agent_id).transcript().token_ids)


def test_a_folder_in_which_nothing_ran_for_want_of_its_model_can_be_made_again(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    wrong = Scenario.load(write(TALK), model=str(tmp_path / "nosuch"))
    with pytest.raises(ModelError, match="nosuch"):
        wrong.run(out=tmp_path / "out")

    right = Scenario.load(write(TALK))
    with (
        RunFolder.open(tmp_path / "out").held(),
        pytest.raises(InvalidScenario, match="is being run by another process"),
    ):
        right.run(system, out=tmp_path / "out")
    [run] = right.run(system, out=tmp_path / "out")

    assert run.ended
    with pytest.raises(InvalidScenario, match="holds something"):
        wrong.run(out=tmp_path / "out")
