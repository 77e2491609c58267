"""A run goes on otherwise from one of its steps, in another folder."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from puppet_talk import TALK, answers, open_system

from kvactors.actors import AgentSystem
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.scenario import Scenario, compare_runs, fork_run, resume_run
from kvactors.actors.testing import FaultyModel
from kvactors.core.model.opening import locate

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


def test_a_fork_prefills_a_block_for_each_agent_and_what_it_is_asked(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    text = TALK.replace("bob: {}", 'bob: {persona: "You are Bob."}')
    text = text.replace("You are", "You are" + " really" * 1000)
    [run] = Scenario.load(write(text)).run(system, out=tmp_path / "out")
    step = next(turn.step for turn in run.turns if turn.phase == "second")

    [fork] = fork_run(tmp_path / "out", step, tmp_path / "fork", system=system)

    before = {turn.step: turn for turn in run.turns}
    after = [turn for turn in fork.turns if turn.step >= step]
    assert {turn.agent for turn in after} == {"anna", "bob"}
    for turn in after:
        assert turn.prompt_tokens == before[turn.step].prompt_tokens > 1000
        assert turn.prefilled_tokens <= before[turn.step].prefilled_tokens + 256
    assert not any(heard.step >= step for heard in fork.heard)


def test_a_fork_into_another_temperature_draws_otherwise_from_there_on(
    write: Write, tmp_path: Path
) -> None:
    with AgentSystem(FaultyModel(), tmp_path / "store", reproducible=True) as system:
        [run] = Scenario.load(write(TALK)).run(system, out=tmp_path / "out")
        step = next(turn.step for turn in run.turns if turn.phase == "second")
        same, hot = (
            fork_run(tmp_path / "out", step, tmp_path / name, settings=settings, system=system)[0]
            for name, settings in (("same", []), ("hot", ["sampling.temperature=5.0"]))
        )

    assert answers(same) == answers(run)
    before = sum(turn.step < step for turn in run.turns)
    assert answers(hot)[:before] == answers(run)[:before]
    assert answers(hot)[before:] != answers(run)[before:]


def test_a_fork_into_another_model_names_it_and_remembers_the_same(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    [run] = Scenario.load(write(TALK)).run(system, out=tmp_path / "out")
    step = next(turn.step for turn in run.turns if turn.phase == "second")
    system.stop()

    with AgentSystem(FaultyModel(), tmp_path / "store") as other:
        name = other.info.name
        [fork] = fork_run(tmp_path / "out", step, tmp_path / "fork", system=other)
        told = [turn.text for turn in other.spawn("fork:seed-0/anna").transcript().turns]

    assert (run.header.model, fork.header.model) == ("puppet-model", name)
    assert name != "puppet-model"
    assert fork.turns[:3] == run.turns[:3]
    first = [turn for turn in fork.turns if turn.step >= step and turn.round == 1]
    assert {turn.cache for turn in first if turn.verb == "ask"} == {"cold"}
    assert run.turns[0].answer in "".join(told)


def test_a_fork_names_the_model_that_it_sets(write: Write, tmp_path: Path) -> None:
    [run] = Scenario.load(write(TALK)).run(out=tmp_path / "out")
    other = locate("default")

    [fork] = fork_run(tmp_path / "out", 3, tmp_path / "fork", settings=[f"model={other}"])

    assert (run.header.model, fork.header.model) == ("default", other)


@pytest.mark.slow
def test_a_fork_behind_a_restart_begins_with_both_processes(write: Write, tmp_path: Path) -> None:
    text = TALK.replace("  - name: second\n", "  - name: second\n    restart: true\n")
    [run] = Scenario.load(write(text)).run(out=tmp_path / "out")
    step = max(turn.step for turn in run.turns)

    [fork] = fork_run(tmp_path / "out", step, tmp_path / "fork", lockstep=True)

    assert fork.ended
    assert fork.turns[:-1] == run.turns[:-1]
    assert [event.kind for event in fork.events] == [
        *("process", "restart", "process", "process", "end"),
    ]


LATE = """\
name: late
sampling: {max_tokens: 8}
agents: {anna: {persona: "You are Anna."}, bob: {persona: "You are Bob."}}
phases:
  - name: first
    who: anna
    rounds: 2
    steps:
      - say: "Speak, {{ round }}."
        to: bob
  - name: second
    steps:
      - ask: "What was said?"
"""


def test_who_has_said_nothing_yet_begins_anew_with_another_persona(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    [run] = Scenario.load(write(LATE)).run(system, out=tmp_path / "out")
    step = next(turn.step for turn in run.turns if turn.agent == "bob")

    [fork] = fork_run(
        tmp_path / "out",
        step,
        tmp_path / "fork",
        settings=["agents.bob.persona=You are Robert, and deaf."],
        system=system,
    )

    before, after = (system.spawn(n).transcript() for n in ("seed-0/bob", "fork:seed-0/bob"))
    assert ("You are Bob." in before.text, "You are Robert" in before.text) == (True, False)
    assert after.text.startswith("<s><|system|>You are Robert, and deaf.")
    assert "You are Bob." not in after.text
    heard = [turn.text for turn in after.turns[:2]]
    assert heard == [turn.text for turn in before.turns[:2]]
    assert all(text.startswith("anna: I know") for text in heard)
    assert fork.turns[-1].memory == run.turns[-1].memory == 3
    assert fork.turns[-1].answer != run.turns[-1].answer


def test_a_persona_that_was_being_told_again_is_told_the_rest_when_the_run_goes_on(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    [run] = Scenario.load(write(LATE)).run(system, out=tmp_path / "out")
    step = next(turn.step for turn in run.turns if turn.agent == "bob")
    settings = ["agents.bob.persona=You are Robert."]
    fork_run(tmp_path / "out", step, tmp_path / "fork", settings=settings, system=system)
    whole = system.spawn("fork:seed-0/bob").transcript()

    def cut(_most: int, _record: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fork_run(
            tmp_path / "out", step, tmp_path / "cut", settings=settings, system=system, watch=cut
        )
    half = system.spawn("cut:seed-0/bob", "You are Robert.")
    half.observe(whole.turns[0].text).get().durable.get()
    [fork] = resume_run(tmp_path / "cut", system)

    assert fork.ended
    assert system.spawn("cut:seed-0/bob").transcript().token_ids == whole.token_ids


def test_who_begins_with_anothers_memory_has_its_new_persona(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    text = LATE.replace("bob: {", "emil: {from: bob, joins: second}, bob: {")
    [run] = Scenario.load(write(text)).run(system, out=tmp_path / "out")
    step = next(turn.step for turn in run.turns if turn.phase == "second")
    settings = ["agents.bob.persona=You are Robert."]

    fork_run(tmp_path / "out", step, tmp_path / "fork", settings=settings, system=system)

    for name in ("bob", "emil"):
        before, after = (system.spawn(f"{tag}seed-0/{name}").transcript() for tag in ("", "fork:"))
        assert [t.text for t in after.turns[:2]] == [t.text for t in before.turns[:2]]
        assert "You are Bob." in before.text
        begins = before.turns[0].rendered.replace("You are Bob.", "You are Robert.")
        assert after.turns[0].rendered == begins


def test_a_fork_does_not_change_what_was_before_it(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    Scenario.load(write(TALK)).run(system, out=tmp_path / "out")

    with pytest.raises(InvalidScenario, match="at step 1 it has answered as who it was"):
        fork_run(tmp_path / "out", 5, tmp_path / "a", settings=["agents.anna.persona=Other."])
    settings = ["phases.first.steps.0.say=Other."]
    with pytest.raises(InvalidScenario, match="step 1 of the journal is not what"):
        fork_run(tmp_path / "out", 5, tmp_path / "b", settings=settings)
    assert not (tmp_path / "b").exists()


def test_a_fork_does_not_change_whom_a_probe_asked_or_what_it_expected(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    probe = 'probes: [{name: was, who: bob, after: first, ask: "What?", expect: word}]\n'
    [run] = Scenario.load(write(LATE + probe)).run(system, out=tmp_path / "out")
    [asked] = [turn for turn in run.turns if turn.verb == "probe"]
    step = next(turn.step for turn in run.turns if turn.phase == "second")

    with pytest.raises(InvalidScenario, match=f"at step {asked.step} it has answered as who"):
        fork_run(tmp_path / "out", step, tmp_path / "a", settings=["agents.bob.persona=Other."])
    with pytest.raises(InvalidScenario, match="which expects 'other' and not 'word'"):
        fork_run(tmp_path / "out", step, tmp_path / "b", settings=["probes.was.expect=other"])
