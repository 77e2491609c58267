"""What interrupts a run or does not fit: told before any work, or gone on with behind it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvactors.actors import AgentSystem
from kvactors.actors.scenarios.diff import differences
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.journal.file import Journal, read_frames
from kvactors.actors.scenarios.journal.reading import read_journal
from kvactors.actors.scenarios.journal.records import Turn
from kvactors.actors.scenarios.scenario import Scenario, replay_run, resume_run
from kvactors.actors.testing import FaultyModel, PuppetModel, use_puppet
from kvactors.core.errors import InvalidInput

Write = Callable[..., Path]

TALK = """\
name: talk
sampling: {max_tokens: 4}
agents: {anna: {persona: "You are Anna."}, bob: {}}
phases:
  - name: first
    rounds: 2
    steps:
      - say: "Speak, {{ round }}."
  - name: second
    steps:
      - ask: "What was said?"
"""
LABEL = "runs/seed-0.journal"


@pytest.fixture
def system(tmp_path: Path) -> Iterator[AgentSystem]:
    """A small random model."""
    with AgentSystem(FaultyModel(), tmp_path / "store", context=512) as opened:
        yield opened


def test_an_interrupted_run_has_results_and_goes_on(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    scenario = Scenario.load(write(TALK))
    seen: list[object] = []

    def interrupt(most: int, record: object) -> None:
        seen.append(record)
        if len(seen) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scenario.run(system, out=tmp_path / "out", watch=interrupt)
    assert (tmp_path / "out/report.html").exists()
    [run] = resume_run(tmp_path / "out", system)

    with AgentSystem(FaultyModel(), tmp_path / "other") as fresh:
        [whole] = scenario.run(fresh, out=tmp_path / "whole")
    assert not list(differences(run, whole))


def test_an_agent_is_asked_nothing_more_before_its_last_answer_is_in_the_journal(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    rounds = "    rounds: 9\n    steps:\n      - ask"
    text = TALK.replace("    rounds: 2\n    steps:\n      - say", rounds)
    done = list[Turn]()

    def cut(_most: int, record: object) -> None:
        if isinstance(record, Turn) and record.agent == "anna":
            done.append(record)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Scenario.load(write(text)).run(system, out=tmp_path / "out", watch=cut)
    anna = system.spawn("seed-0/anna")
    anna.ask("Behind all that waits.").get()

    asked = [turn.text for turn in anna.transcript().turns if turn.asked]
    assert asked == ["Speak, 1.", "Behind all that waits."]
    assert len(done) == 1


def test_a_persona_longer_than_the_context_is_refused(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    text = TALK.replace("You are Anna.", "You are Anna. " * 100)

    refused = r"persona of anna has 1,4\d\d tokens, .* is 512"
    with pytest.raises(InvalidScenario, match=refused):
        Scenario.load(write(text)).run(system, out=tmp_path / "out")
    with pytest.raises(InvalidScenario, match=refused):
        resume_run(tmp_path / "out", system)
    assert not list((tmp_path / "out/runs").iterdir())


def test_a_full_context_is_a_failure_of_its_turn(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    text = TALK.replace("What was said?", "{{ 'What? ' * (200 if agent.name == 'bob' else 1) }}")

    [run] = Scenario.load(write(text)).run(system, out=tmp_path / "out")

    assert [(f.agent, f.error) for f in run.failures] == [("bob", "ContextExceeded")]
    assert run.ended
    assert "ContextExceeded" in (tmp_path / "out/report.html").read_text()


def test_a_swapped_model_is_loaded_again_where_a_run_goes_on(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    text = TALK.replace("  - name: second\n", "  - name: second\n    swap_model: default\n")
    [whole] = Scenario.load(write(text)).run(system, out=tmp_path / "out")
    path = tmp_path / "out" / LABEL
    path.write_bytes(path.read_bytes()[:-120])

    system.stop()
    with AgentSystem(FaultyModel(), tmp_path / "store", context=512) as again:
        [run] = resume_run(tmp_path / "out", again)
        assert again.info.name == "default"

    assert [event.kind for event in run.events].count("swap") == 1
    assert not list(differences(run, whole))
    assert {turn.cache for turn in whole.turns if turn.phase == "second"} == {"cold"}


@pytest.mark.parametrize("seed", range(3))
def test_500_agents_of_whom_half_fail_at_random_do_not_stop_a_run(
    play: Callable[..., Any], seed: int
) -> None:
    text = """\
name: crowd
agents: {person: {count: 500}}
channels:
  street: {listeners: "'person-%d' % (speaker.number % 500 + 1)"}
phases:
  - name: talk
    rounds: 3
    order: together
    channel: street
    steps:
      - say: "Speak, {{ heard | length }}."
"""
    random = Random(seed)

    run = play(text, lambda agent, prompt: random.choice(["!no", "yes"])).run(order=seed)

    assert len(run.turns) + len(run.failures) == 1500
    assert len(run.heard) == len(run.turns)
    assert 600 < len(run.failures) < 900


def test_a_damaged_journal_is_named_with_its_byte(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    Scenario.load(write(TALK)).run(system, out=tmp_path / "out")
    path = tmp_path / "out" / LABEL
    whole = path.read_bytes()

    for place in range(20, len(whole) - 200, 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(InvalidInput, match=r"is damaged at byte|is no journal"):
            read_journal(path)


def test_every_torn_end_of_a_journal_is_cut_and_gone_on_with(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    Scenario.load(write(TALK)).run(system, out=tmp_path / "out")
    whole = (tmp_path / "out" / LABEL).read_bytes()
    header, *records = read_frames(tmp_path / "out" / LABEL)
    path = tmp_path / "torn"

    for end in (*range(len(whole) - 30, len(whole)), len(whole)):
        path.write_bytes(whole[:end] + (bytes(9) if end == len(whole) else b""))
        journal = Journal(path)
        for record in records[len(list(read_frames(path))) - 1 :]:
            journal.append(record)  # type: ignore[arg-type]
        journal.close()
        assert list(read_frames(path)) == [header, *records]
        assert path.read_bytes() == whole


def test_a_journal_of_a_newer_version_is_refused(write: Write, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"kvactors run 2\nwhatever")

    with pytest.raises(InvalidInput, match="is of version 2, and this kvactors reads up to 1"):
        read_journal(path)


def test_a_turn_takes_few_bytes_beyond_its_text(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    """In the journal; and in all of the folder but pictures, where journal and page have its text,
    and turns.csv.gz is packed. What a run with few turns leaves is of no turn."""
    scenario = Scenario.load(write(TALK), settings=["phases.first.rounds=8"])
    [run] = scenario.run(system, out=tmp_path / "out")
    few = Scenario.load(write(TALK), settings=["phases.first.rounds=1", "seeds=1"])
    [short] = few.run(system, out=tmp_path / "few")

    more = len(run.turns) - len(short.turns)
    texts = sum(map(text_of, run.turns)) - sum(map(text_of, short.turns))
    size = (tmp_path / "out" / LABEL).stat().st_size - len(str(run.header))
    assert (size - sum(map(text_of, run.turns))) / len(run.turns) <= 300
    left = [left_by(tmp_path / name) for name in ("out", "few")]
    assert (left[0] - left[1] - 2 * texts) / more <= 300


def text_of(turn: Turn) -> int:
    """Bytes that an agent was asked and has answered."""
    return len((turn.prompt + turn.answer).encode())


def left_by(out: Path) -> int:
    """Bytes of a run's journal, tables and page, in which nothing is drawn here."""
    files = [path for path in (*out.iterdir(), *(out / "runs").iterdir()) if path.is_file()]
    return sum(path.stat().st_size for path in files)


GIVEN_UP = """\
name: given-up
sampling: {max_tokens: 60}
on_failure: stop
agents: {anna: {}, bob: {}}
channels:
  street:
    form: "{{ text if speaker.name == 'bob' else text.split('/')[1] }}"
phases:
  - name: first
    channel: street
    order: together
    rounds: 5
    until: answers(round=round) | length > 5
    steps:
      - say: "{{ agent.name }}, speak."
"""


def test_a_run_that_gives_up_while_somebody_answers_is_replayed_and_has_ended(
    write: Write, tmp_path: Path
) -> None:
    def script(said: str) -> str:
        return "word " * 30 + "." if "bob, speak" in said else "Short."

    puppet = PuppetModel(script)
    made = AgentSystem(puppet, tmp_path / "store")
    use_puppet(made, puppet)
    with made:
        [run] = Scenario.load(write(GIVEN_UP)).run(made, out=tmp_path / "out")
        [again] = replay_run(tmp_path / "out", tmp_path / "again")
        resumed = resume_run(tmp_path / "out", made)

    assert [failure.agent for failure in run.failures] == ["bob"]
    assert [event.kind for event in run.events] == ["process", "stop", "end"]
    assert (tmp_path / "again" / LABEL).read_bytes() == (tmp_path / "out" / LABEL).read_bytes()
    assert again.turns == run.turns
    assert resumed == [run]
