"""A phase that begins in another process."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from puppet_talk import TALK, open_system

from kvactors.actors import AgentSystem
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.journal.file import Record
from kvactors.actors.scenarios.journal.reading import read_journal
from kvactors.actors.scenarios.results.talk import process_begins
from kvactors.actors.scenarios.scenario import Scenario

Write = Callable[..., Path]


@pytest.fixture
def system(tmp_path: Path) -> Iterator[AgentSystem]:
    """Puppets."""
    with open_system(tmp_path / "store") as opened:
        yield opened


def test_a_phase_that_restarts_runs_in_another_process_of_which_who_watches_is_told(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    (tmp_path / "beside").mkdir()
    write("def nothing(run):\n    return []\n", "beside/own_beside.py")
    skipped = "      - {say: 'Never.', when: 1 > 2}\n"
    text = TALK.replace("  - name: second\n", f"{skipped}  - name: second\n    restart: true\n")
    file = write(f"{text}metrics: own_beside:nothing\n", "beside/talk.yaml")
    scenario = Scenario.load(file, settings=["engine.context=512"])

    told: list[Record] = []
    [run] = scenario.run(out=tmp_path / "out", watch=lambda _, record: told.append(record))

    assert not run.failures
    assert [event.kind for event in run.events] == ["process", "restart", "process", "end"]
    kept = read_journal(tmp_path / "out" / "runs" / f"{run.header.label}.journal")[1]
    assert [(type(one), one.step) for one in told] == [(type(one), one.step) for one in kept]
    # A process stands behind the restart that it came of, and its turns are timed from there.
    _, restart, process, _ = run.events
    assert process.step == restart.step + 1
    begins = process_begins(run)
    assert {begins(turn) for turn in run.turns if turn.phase == "first"} == {run.events[0].at}
    assert {begins(turn) for turn in run.turns if turn.phase == "second"} == {process.at}
    second = [turn for turn in run.turns if turn.phase == "second" and turn.round == 1]
    assert {turn.cache for turn in second if turn.verb == "ask"} == {"warm"}


def test_a_restart_needs_a_system_of_its_own(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    text = TALK.replace("  - name: second\n", "  - name: second\n    restart: true\n")

    with pytest.raises(InvalidScenario, match="'second' restarts the process"):
        Scenario.load(write(text)).run(system, out=tmp_path / "out")


OWN = """\
import os
from pathlib import Path

from kvactors.actors.behaviours.behaviour import AgentBehaviour


class Witness(AgentBehaviour):
    async def on_message(self, message, sender):
        with Path(__file__).with_name("seen.txt").open("a") as file:
            file.write(f"{message.phase} {os.getpid()}\\n")
        return message.text
"""


@pytest.mark.slow
def test_behind_a_restart_code_runs_in_another_process_and_is_as_it_was(
    write: Write, tmp_path: Path
) -> None:
    write(OWN, "own_witness.py")
    text = TALK.replace("  - name: second\n", "  - name: second\n    restart: true\n")
    scenario = Scenario.load(
        write(text.replace("bob: {}", 'bob: {behaviour: "own_witness:Witness"}'))
    )

    [run] = scenario.run(out=tmp_path / "out")

    assert not run.failures
    seen = [line.split() for line in (tmp_path / "seen.txt").read_text().splitlines()]
    pids = {phase: {int(pid) for name, pid in seen if name == phase} for phase, _ in seen}
    [child] = pids["second"]
    # What the journal has is gone through again there, so that its attributes are as they were.
    assert pids["first"] == {os.getpid(), child}
    assert child != os.getpid()
