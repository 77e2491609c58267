"""Runs with a system of agents: their folders, journals, probes, forks, replays and restarts."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvactors.actors import AgentSystem
from kvactors.actors.errors import AgentExists
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.folder import RunFolder
from kvactors.actors.scenarios.journal.reading import read_journal
from kvactors.actors.scenarios.journal.records import Run
from kvactors.actors.scenarios.scenario import (
    Scenario,
    compare_runs,
    fork_run,
    replay_run,
    resume_run,
)
from kvactors.actors.testing import FailingFiles, PuppetModel, use_disk, use_puppet

Write = Callable[..., Path]

TALK = """\
name: talk
sampling: {max_tokens: 8}
parameters: {mood: calm}
agents: {anna: {persona: "You are Anna."}, bob: {}}
phases:
  - name: first
    steps:
      - say: "Speak, {{ round }}."
  - name: second
    rounds: 2
    steps:
      - ask: "What was said, {{ mood }}?"
probes:
  - {name: who, who: anna, ask: "Who are you?", expect: "anna"}
"""
LABEL = "runs/seed-0.journal"


def reply(said: str) -> str:
    """The puppets' script: how much they have been told."""
    return f"I know {len(said)}."


@pytest.fixture
def system(tmp_path: Path) -> Iterator[AgentSystem]:
    """Puppets."""
    with open_system(tmp_path / "store") as opened:
        yield opened


def open_system(store: Path) -> AgentSystem:
    puppet = PuppetModel(reply)
    made = AgentSystem(puppet, store, deterministic=True)
    use_puppet(made, puppet)
    return made


def answers(run: Run) -> list[str]:
    return [turn.answer for turn in run.turns]


def test_a_run_leaves_its_journal_and_results(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    [run] = Scenario.load(write(TALK)).run(system, out=tmp_path / "out")

    assert run.ended
    assert [turn.verb for turn in run.turns].count("probe") == 2
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "scenario.json",
        "runs",
        "turns.csv",
        "metrics.csv",
        "report.html",
    }
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
    assert (tmp_path / "out" / "turns.csv").read_text().count("mood-sad") > 4


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


def test_a_phase_that_restarts_runs_in_another_process(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    (tmp_path / "beside").mkdir()
    write("def nothing(run):\n    return []\n", "beside/own_beside.py")
    text = TALK.replace("  - name: second\n", "  - name: second\n    restart: true\n")
    file = write(f"{text}metrics: own_beside:nothing\n", "beside/talk.yaml")
    scenario = Scenario.load(file, settings=["engine.context=512"])

    [run] = scenario.run(out=tmp_path / "out")

    assert not run.failures
    assert [event.kind for event in run.events] == ["process", "restart", "process", "end"]
    second = [turn for turn in run.turns if turn.phase == "second" and turn.round == 1]
    assert {turn.cache for turn in second if turn.verb == "ask"} == {"warm"}


def test_a_restart_needs_a_system_of_its_own(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    text = TALK.replace("  - name: second\n", "  - name: second\n    restart: true\n")

    with pytest.raises(InvalidScenario, match="'second' restarts the process"):
        Scenario.load(write(text)).run(system, out=tmp_path / "out")
