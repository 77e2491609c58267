"""Runs with a system of agents: their folders, journals, probes, replays."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from puppet_talk import TALK, answers, open_system, reply

from kvactors.actors import AgentSystem
from kvactors.actors.errors import AgentExists
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.folder import RunFolder
from kvactors.actors.scenarios.journal.reading import read_journal
from kvactors.actors.scenarios.scenario import (
    Scenario,
    compare_runs,
    replay_run,
    resume_run,
)
from kvactors.actors.testing import FailingFiles, PuppetModel, use_disk, use_puppet

Write = Callable[..., Path]

LABEL = "runs/seed-0.journal"


@pytest.fixture
def system(tmp_path: Path) -> Iterator[AgentSystem]:
    """Puppets."""
    with open_system(tmp_path / "store") as opened:
        yield opened


@pytest.mark.usefixtures("drawn")
def test_a_run_leaves_its_journal_and_results(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    [run] = Scenario.load(write(TALK)).run(system, out=tmp_path / "out")

    assert run.ended
    assert [turn.verb for turn in run.turns].count("probe") == 2
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "scenario.json",
        "runs",
        "turns.csv.gz",
        "metrics.csv",
        "report.html",
    }
    assert (tmp_path / "out/figures/timeline.png").stat().st_size > 1000
    assert run.header.model == "puppet-model"
    assert {metric.name for metric in run.metrics} >= {"recall", "tokens_prefilled"}


def test_a_probe_leaves_no_trace(write: Write, tmp_path: Path, system: AgentSystem) -> None:
    Scenario.load(write(TALK)).run(system, out=tmp_path / "out")
    without = Scenario.load(write(TALK), settings=["probes=[]", "seeds=1"])

    without.run(system, out=tmp_path / "without")

    for name in ("anna", "bob"):
        one, other = (system.spawn(f"seed-{n}/{name}").transcript() for n in (0, 1))
        assert one.token_ids == other.token_ids


def test_a_replay_makes_the_same_journal_without_a_model(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    Scenario.load(write(TALK)).run(system, out=tmp_path / "out")
    system.stop()

    [run] = replay_run(tmp_path / "out", tmp_path / "again")

    assert (tmp_path / "again" / LABEL).read_bytes() == (tmp_path / "out" / LABEL).read_bytes()
    assert run.ended
    assert compare_runs(tmp_path / "out", tmp_path / "again") == {"seed-0": []}


def test_what_stopped_in_lockstep_is_replayed(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    fails = """\
name: stops
on_failure: stop
sampling: {max_tokens: 4}
agents: {anna: {}, bob: {}}
phases: [{name: days, order: together, rounds: 4, steps: [{ask: "{{ 6 // (3 - round) }}."}]}]
"""
    Scenario.load(write(fails)).run(system, out=tmp_path / "out", lockstep=True)

    [run] = replay_run(tmp_path / "out", tmp_path / "again")

    assert [event.kind for event in run.events][-2:] == ["stop", "end"]
    assert (tmp_path / "again" / LABEL).read_bytes() == (tmp_path / "out" / LABEL).read_bytes()


def test_a_journal_of_another_scenario_is_not_replayed(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    Scenario.load(write(TALK)).run(system, out=tmp_path / "out")
    folder = RunFolder.open(tmp_path / "out")
    changed = json.loads((folder.path / "scenario.json").read_text())
    changed["scenario"]["phases"][0]["steps"][0]["say"] = "Be silent."
    (folder.path / "scenario.json").write_text(json.dumps(changed))

    with pytest.raises(InvalidScenario, match=r"step 1 of the journal .* 'Be silent.'"):
        replay_run(tmp_path / "out", tmp_path / "again")


def test_a_run_begins_in_an_empty_folder_only(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    scenario = Scenario.load(write(TALK))
    scenario.run(system, out=tmp_path / "out")

    with pytest.raises(InvalidScenario, match="go on with a run by --resume"):
        scenario.run(system, out=tmp_path / "out")
    with pytest.raises(AgentExists, match="is of an earlier run"):
        scenario.run(system, out=tmp_path / "other")
    with pytest.raises(InvalidScenario, match="holds no run"):
        resume_run(tmp_path / "nowhere", system)


def test_what_was_refused_does_not_take_another_runs_agents_when_it_goes_on(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    scenario = Scenario.load(write(TALK))
    scenario.run(system, out=tmp_path / "out")
    names = ("seed-0/anna", "seed-0/bob")
    before = [system.spawn(name).transcript() for name in names]

    with pytest.raises(AgentExists, match="is of an earlier run"):
        scenario.run(system, out=tmp_path / "other")
    with pytest.raises(AgentExists, match="is of an earlier run"):
        resume_run(tmp_path / "other", system)

    assert [system.spawn(name).transcript() for name in names] == before
    for name in names:
        system.forget(name)
    [run] = resume_run(tmp_path / "other", system)
    assert run.ended


def test_of_a_sweep_that_is_refused_no_run_begins(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    Scenario.load(write(TALK), settings=["seeds=2"]).run(system, out=tmp_path / "out")

    with pytest.raises(AgentExists, match="is of an earlier run"):
        Scenario.load(write(TALK), settings=["seeds=1..2"]).run(system, out=tmp_path / "other")

    assert not list((tmp_path / "other/runs").iterdir())
    assert {known.agent_id for known in system.known_agents()} == {"seed-2/anna", "seed-2/bob"}


def test_what_has_ended_is_not_run_again(write: Write, tmp_path: Path, system: AgentSystem) -> None:
    Scenario.load(write(TALK)).run(system, out=tmp_path / "out")
    before = (tmp_path / "out" / LABEL).read_bytes()

    resume_run(tmp_path / "out", system)

    assert (tmp_path / "out" / LABEL).read_bytes() == before


@pytest.mark.parametrize("torn", [1, 7, 40])
def test_a_torn_journal_goes_on_where_it_is_whole(
    write: Write, tmp_path: Path, system: AgentSystem, torn: int
) -> None:
    [whole] = Scenario.load(write(TALK)).run(system, out=tmp_path / "out")
    path = tmp_path / "out" / LABEL
    path.write_bytes(path.read_bytes()[: len(path.read_bytes()) * 2 // 3 - torn])

    [run] = resume_run(tmp_path / "out", system)

    assert answers(run) == answers(whole)
    assert [event.kind for event in run.events].count("process") == 2


def test_branches_of_a_file_part_with_their_memory(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    text = TALK.replace("    rounds: 2\n", "    fork: {left: {mood: angry}, right: {}}\n")

    [run] = Scenario.load(write(text)).run(system, out=tmp_path / "out")

    left, right = (
        [turn for turn in run.turns if turn.branch == name] for name in ("left", "right")
    )
    assert [turn.prompt for turn in left[:1]] == ["What was said, angry?"]
    assert [turn.answer for turn in left[:2]] != [turn.answer for turn in right[:2]]
    assert all(turn.reused_tokens > 20 for turn in (*left, *right))


def test_a_sweep_has_a_run_for_each_point_and_one_table(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    scenario = Scenario.load(write(TALK), settings=["seeds=1..2", "parameters.mood=[sad, glad]"])

    runs = scenario.run(system, out=tmp_path / "out")

    labels = ["seed-1,mood-sad", "seed-1,mood-glad", "seed-2,mood-sad", "seed-2,mood-glad"]
    assert [run.header.label for run in runs] == labels
    assert all(run.ended for run in runs)
    assert gzip.decompress((tmp_path / "out" / "turns.csv.gz").read_bytes()).count(b"mood-sad") > 4


def test_the_same_seed_gives_the_same_journal_byte_for_byte(write: Write, tmp_path: Path) -> None:
    found = []
    for name in ("one", "other"):
        with open_system(tmp_path / f"store-{name}") as system:
            scenario = Scenario.load(write(TALK), settings=["engine.deterministic=true"])
            scenario.run(system, out=tmp_path / name)
        found.append((tmp_path / name / LABEL).read_bytes())

    assert found[0] == found[1]


def test_a_full_disk_ends_the_run_and_loses_nothing(write: Write, tmp_path: Path) -> None:
    puppet = PuppetModel(reply)
    system = AgentSystem(puppet, tmp_path / "store", deterministic=True)
    use_puppet(system, puppet)
    disk = FailingFiles(name="sync", at=12)
    use_disk(system, disk)
    scenario = Scenario.load(write(TALK))

    with pytest.raises(Exception, match=r"disk|space|write"), system:
        scenario.run(system, out=tmp_path / "out")

    _, kept = read_journal(tmp_path / "out" / LABEL)
    with open_system(tmp_path / "store") as again:
        [run] = resume_run(tmp_path / "out", again)
    assert run.ended
    assert read_journal(tmp_path / "out" / LABEL)[1][: len(kept)] == kept


def test_a_memory_that_is_gone_is_said(write: Write, tmp_path: Path, system: AgentSystem) -> None:
    Scenario.load(write(TALK)).run(system, out=tmp_path / "out")
    path = tmp_path / "out" / LABEL
    path.write_bytes(path.read_bytes()[: len(path.read_bytes()) * 2 // 3])
    system.forget("seed-0/anna")

    with pytest.raises(Exception, match="remembers 0 exchanges of the"):
        resume_run(tmp_path / "out", system)
