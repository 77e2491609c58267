"""What goes wrong in a file, on a disk or in somebody's own function loses nothing of a run."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvactors.actors import AgentSystem
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.folder import RunFolder
from kvactors.actors.scenarios.journal.file import read_frames
from kvactors.actors.scenarios.part import AT_ONCE
from kvactors.actors.scenarios.scenario import Scenario, fork_run, replay_run, resume_run
from kvactors.actors.testing import PuppetModel, use_puppet

Write = Callable[..., Path]

TALK = """\
name: talk
sampling: {max_tokens: 4}
parameters: {mood: calm}
agents: {anna: {}, bob: {}}
phases:
  - name: first
    steps:
      - say: "Speak."
  - name: second
    steps:
      - ask: "{{ mood }}?"
"""
LABEL = "runs/seed-0.journal"


@pytest.fixture
def system(tmp_path: Path) -> Iterator[AgentSystem]:
    """Puppets."""
    puppet = PuppetModel(lambda said: f"I know {len(said)}.")
    made = AgentSystem(puppet, tmp_path / "store", deterministic=True)
    use_puppet(made, puppet)
    with made:
        yield made


@pytest.mark.parametrize(
    "values", ["[é, ü]", "[a b, a_b]", "['1', 1]", "[x, X]", f"[{'y' * 300}, z]"]
)
def test_no_two_points_of_a_sweep_share_a_journal(
    write: Write, tmp_path: Path, system: AgentSystem, values: str
) -> None:
    scenario = Scenario.load(write(TALK), settings=[f"parameters.mood={values}"])

    runs = scenario.run(system, out=tmp_path / "out")

    assert len({run.header.label.casefold() for run in runs}) == 2
    assert [len(run.turns) for run in runs] == [4, 4]


@pytest.mark.parametrize("seeds", ["[1, 1]", "99999999999999999999", "1..99999999999"])
def test_seeds_are_different_and_of_64_bits(write: Write, seeds: str) -> None:
    with pytest.raises(InvalidScenario, match=r"seeds"):
        Scenario.load(write(TALK), settings=[f"seeds={seeds}"])


def test_a_fork_takes_no_agents_of_another_fork(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    [run] = Scenario.load(write(TALK)).run(system, out=tmp_path / "out")
    *_, early, late = (turn.step for turn in run.turns if turn.phase == "second")
    out = tmp_path / "fork"
    fork_run(tmp_path / "out", early, out, settings=["parameters.mood=sad"], system=system)
    shutil.rmtree(out)

    fork_run(tmp_path / "out", late, out, system=system)

    texts = {
        n: [t.text for t in system.spawn(n).transcript().turns]
        for n in ("fork:seed-0/anna", "fork:2:seed-0/anna")
    }
    assert any("sad" in text for text in texts["fork:seed-0/anna"])
    assert not any("sad" in text for text in texts["fork:2:seed-0/anna"])
    assert any("calm" in text for text in texts["fork:2:seed-0/anna"])


def test_a_tell_that_fails_is_replayed(write: Write, tmp_path: Path, system: AgentSystem) -> None:
    text = TALK.replace('say: "Speak."', 'tell: "{{ heard[0].text }}"')
    [run] = Scenario.load(write(text)).run(system, out=tmp_path / "out")

    replay_run(tmp_path / "out", tmp_path / "again")

    assert [failure.error for failure in run.failures] == ["UndefinedError"] * 2
    assert (tmp_path / "again" / LABEL).read_bytes() == (tmp_path / "out" / LABEL).read_bytes()


@pytest.mark.parametrize("kept", [0, 5, 15, 30])
def test_a_run_whose_header_was_torn_begins_again(
    write: Write, tmp_path: Path, system: AgentSystem, kept: int
) -> None:
    Scenario.load(write(TALK)).run(system, out=tmp_path / "out")
    path = tmp_path / "out" / LABEL
    path.write_bytes(path.read_bytes()[:kept])
    for name in ("anna", "bob"):
        system.forget(f"seed-0/{name}")

    [run] = resume_run(tmp_path / "out", system)

    assert run.ended
    assert len(run.turns) == 4


def test_a_torn_frame_with_zeros_behind_it_is_cut(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    Scenario.load(write(TALK)).run(system, out=tmp_path / "out")
    path = tmp_path / "out" / LABEL
    whole, every = path.read_bytes(), list(read_frames(path))

    for end in range(len(whole) - 200, len(whole)):
        path.write_bytes(whole[:end] + bytes(37))
        found = list(read_frames(path))
        assert found == every[: len(found)]


@pytest.mark.parametrize(
    "text", ["{{ [1, 2]|random }}", "{{ lipsum() }}", "{{ answers }}", "{{ answers | list }}"]
)
def test_a_prompt_follows_from_the_seed_alone(write: Write, text: str) -> None:
    with pytest.raises(InvalidScenario, match=r"random|lipsum|answers is a question"):
        Scenario.load(write(TALK.replace("Speak.", text)))


def test_what_lies_in_memory_is_not_printed(play: Callable[..., Any]) -> None:
    run = play(TALK.replace("Speak.", "{{ [1]|map('string') }}{{ range }}")).run()

    assert {failure.error for failure in run.failures} == {"TypeError"}


def test_a_form_that_fails_is_a_failure_of_who_listens(play: Callable[..., Any]) -> None:
    text = TALK.replace("phases:", "channels: {c: {form: '{{ text[0] + 1 }}'}}\nphases:")

    talk = play(text.replace("  - name: first", "  - name: first\n    channel: c"))

    assert [failure.error for failure in talk.run().failures] == ["TypeError"] * 2


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("    order: rule\n    rule: '5'\n", "'5' of phase 'second' fails"),
        ("    rounds: 2\n    until: \"answers('first')[9]\"\n", "of phase 'second' fails"),
        ("    channel: c\n", "`listeners` of channel 'c' fails"),
    ],
)
def test_an_expression_that_fails_is_named_and_leaves_results(
    write: Write, tmp_path: Path, system: AgentSystem, where: str, said: str
) -> None:
    text = TALK.replace("  - name: second\n", f"  - name: second\n{where}").replace("ask:", "say:")
    scenario = Scenario.load(
        write(text.replace("phases:", "channels: {c: {listeners: '5'}}\nphases:"))
    )

    with pytest.raises(InvalidScenario, match=said):
        scenario.run(system, out=tmp_path / "out")

    assert (tmp_path / "out/report.html").exists()


def test_few_runs_of_a_sweep_go_on_at_once(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    open_, most = set[int](), 0

    def watch(turns: int, record: Any) -> None:
        nonlocal most
        if getattr(record, "kind", "") == "process":
            open_.add(len(open_))
        elif getattr(record, "kind", "") == "end":
            open_.pop()
        most = max(most, len(open_))

    scenario = Scenario.load(
        write(TALK),
        settings=[
            f"seeds=1..{AT_ONCE + 2}",
            "agents={anna: {}}",
            "phases=[{name: one, steps: [{ask: hi}]}]",
        ],
    )
    runs = scenario.run(system, out=tmp_path / "out", watch=watch)

    assert most == AT_ONCE
    assert all(run.ended for run in runs)


def test_two_do_not_write_into_one_folder(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    refused = list[object]()

    def watch(_most: int, _record: object) -> None:
        if not refused:
            with pytest.raises(InvalidScenario, match="is being run by another process") as error:
                resume_run(tmp_path / "out", system)
            refused.append(error)

    [run] = Scenario.load(write(TALK)).run(system, out=tmp_path / "out", watch=watch)

    assert refused
    assert len(run.turns) == 4
    assert resume_run(tmp_path / "out", system) == [run]


def test_what_another_process_runs_is_left_alone(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    out = tmp_path / "out"
    Scenario.load(write(TALK)).run(system, out=out)
    (out / "report.html").unlink()

    with (
        RunFolder.open(out).held(),
        pytest.raises(InvalidScenario, match="is being run by another process"),
    ):
        resume_run(out)

    assert not (out / "report.html").exists()
    assert not (out / "store").exists()


def test_null_is_what_a_system_has_for_it(write: Write, tmp_path: Path) -> None:
    text = TALK.replace("sampling:", "engine: {kv_bits: null}\nsampling:")

    Scenario.load(write(text)).run(out=tmp_path / "float")
    Scenario.load(write(TALK)).run(out=tmp_path / "four")

    kept = {
        name: sum(path.stat().st_size for path in (tmp_path / name / "store/kv").rglob("seg-*"))
        for name in ("float", "four")
    }
    assert kept["float"] > 2 * kept["four"] > 0


@pytest.mark.slow
def test_what_is_beside_an_inherited_file_is_found_by_whoever_goes_on(
    write: Write, tmp_path: Path
) -> None:
    (tmp_path / "base").mkdir()
    write("def none(run):\n    return []\n", "base/own_inherited.py")
    write(f"{TALK}metrics: own_inherited:none\n", "base/base.yaml")
    child = write(
        "inherits: base/base.yaml\nname: child\nphases:\n"
        "  - {name: one, steps: [{say: Speak.}]}\n"
        "  - {name: two, restart: true, steps: [{ask: Who is it.}]}\n"
    )

    [run] = Scenario.load(child).run(out=tmp_path / "out")

    assert run.ended
    assert not run.failures
    assert RunFolder.open(tmp_path / "out").homes == (tmp_path, tmp_path / "base")
