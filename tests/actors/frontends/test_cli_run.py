"""`kvactors run` and `kvactors diff`, as they are typed."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import yaml
from children import run_child
from typer.testing import CliRunner, Result

from kvactors.actors.frontends.cli.app import app
from kvactors.actors.scenarios.journal.file import Journal
from kvactors.actors.scenarios.journal.reading import read_journal
from kvactors.actors.scenarios.journal.records import Turn

TALK = """\
name: talk
sampling: {max_tokens: 8}
parameters: {day: Monday}
agents: {anna: {}, ben: {}}
phases:
  - name: first
    steps:
      - say: "What does the candle cost?"
  - name: second
    steps:
      - ask: "What was on {{ day }}?"
"""


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file of a scenario, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "talk.yaml").write_text(TALK)
    return "talk.yaml"


def typed(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_a_run_is_shown_replayed_forked_and_compared(scenario: str) -> None:
    ran = typed("run", scenario, "--seed", "3")
    replayed = typed("run", "talk-1", "--replay", "--out", "again")
    forked = typed("run", "talk-1", "--from", "5", "--set", "parameters.day=Friday")
    resumed = typed("run", "talk-1", "--resume")
    same, parted = typed("diff", "talk-1", "again"), typed("diff", "talk-1", "talk-1-fork-1")

    assert [r.exit_code for r in (ran, replayed, forked, resumed)] == [0] * 4, forked.stderr
    assert "tokens_generated" in ran.stdout
    assert "Everything is in talk-1." in ran.stderr
    assert (same.exit_code, same.stdout) == (0, "seed-3: the same\n")
    assert parted.exit_code == 1
    assert "they part at step" in parted.stdout
    assert "'What was on Monday?' | 'What was on Friday?'" in parted.stdout


def test_a_run_with_steps_that_failed_ends_in_status_1(scenario: str) -> None:
    Path(scenario).write_text(TALK.replace("{{ day }}", "{{ 1 / 0 }}"))

    ran, replayed = typed("run", scenario), typed("run", "talk-1", "--replay", "--out", "again")

    assert (ran.exit_code, replayed.exit_code) == (1, 1)
    assert "2 steps failed: they are in the report.\nEverything is in talk-1.\n" in ran.stderr


@pytest.mark.slow
def test_runs_that_only_one_folder_has_are_named_and_single_ones_are_compared(
    scenario: str,
) -> None:
    sweep = [typed("run", scenario, "--seed", seeds, "--out", seeds) for seeds in ("1..2", "2..3")]
    one = typed("run", scenario, "--seed", "3", "--out", "one", "--set", "parameters.day=Friday")
    partly, single = typed("diff", "1..2", "2..3"), typed("diff", "one", "2..3")
    other = typed("run", scenario, "--seed", "4", "--out", "other")
    renamed = typed("diff", "one", "other")

    assert [ran.exit_code for ran in (*sweep, one, other)] == [0] * 4
    assert partly.exit_code == 1
    assert partly.stdout.splitlines() == [
        "seed-1: only 1..2 has it",
        "seed-2: the same",
        "seed-3: only 2..3 has it",
    ]
    assert "seed-2: only 2..3 has it" in single.stdout
    assert "seed-3: they part at step" in single.stdout
    assert renamed.exit_code == 1
    assert "seed-3 | seed-4: they part at step" in renamed.stdout
    assert "'What was on Friday?' | 'What was on Monday?'" in renamed.stdout


@pytest.mark.slow
def test_a_run_goes_on_and_forks_in_lockstep(scenario: str) -> None:
    # Who answers with one token is rounds ahead, but in lockstep.
    Path(scenario).write_text(
        TALK.replace("anna: {}, ben: {}", "anna: {sampling: {max_tokens: 1}}, ben: {}").replace(
            '    steps:\n      - say: "', '    rounds: 9\n    steps:\n      - ask: "'
        )
    )
    free = typed("run", scenario, "--out", "free")
    locked = typed("run", scenario, "--lockstep", "--out", "locked")
    cut_behind(Path("free/runs/seed-0.journal"), 6)
    cut_behind(Path("locked/runs/seed-0.journal"), 3)
    refused = typed("run", "free", "--resume", "--lockstep")
    resumed = typed("run", "locked", "--resume")
    again = typed("run", "locked", "--resume", "--lockstep")
    forked = typed("run", "free", "--from", "3", "--lockstep", "--out", "fork")

    for ran in (free, locked, resumed, again, forked):
        assert ran.exit_code == 0, ran.stderr
    assert refused.exit_code == 2
    assert "was not begun in lockstep" in refused.stderr
    for folder in ("locked", "fork"):
        _, records = read_journal(Path(folder) / "runs/seed-0.journal")
        turns = [record for record in records if isinstance(record, Turn)]
        rounds = [turn.round for turn in turns if turn.phase == "first"]
        assert rounds == sorted(rounds)
        assert len(turns) == 20


def cut_behind(path: Path, turns: int) -> None:
    """Let a journal end behind so many turns, as one of a run that was cut off there."""
    header, records = read_journal(path)
    path.unlink()
    journal = Journal(path, header)
    for record in records:
        journal.append(record)
        turns -= isinstance(record, Turn)
        if turns == 0:
            break
    journal.close()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["talk.yaml", "--set", "phases.first.rouns=2"], "did you mean 'rounds'?"),
        (["nothing.yaml"], "nothing.yaml"),
        (["talk.yaml", "--resume", "--replay"], "take one"),
        (["talk-1", "--replay", "--lockstep"], "leave out --lockstep"),
        (["talk.yaml", "--resume", "--seed", "3"], "as it was"),
        (["nowhere", "--resume"], "holds no run"),
        ([".", "--resume", "--out", "other"], "leave out --out"),
        (["talk.yaml", "--resume"], "holds no run"),
        (["."], "is a folder: name a scenario's file"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(scenario: str, words: list[str], told: str) -> None:
    result = typed("run", *words)

    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_schema_that_is_printed_takes_every_shipped_file_and_no_slip() -> None:
    shown = typed("run", "--schema")
    shipped = sorted((Path(__file__).parents[3] / "examples/scenarios").glob("*.yaml"))

    assert shown.exit_code == 0
    schema = json.loads(shown.stdout)
    assert len(shipped) == 7
    for path in shipped:
        file = yaml.safe_load(path.read_text(encoding="utf-8"))
        jsonschema.validate({"inherits": "base.yaml", **file}, schema)
        for place in (file, file["phases"][0], next(iter(file["agents"].values()))):
            place["aks"] = "What?"
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(file, schema)
            del place["aks"]


def test_without_its_extra_it_says_how_to_install_it(scenario: str) -> None:
    ended = run_child(
        """
        import sys
        sys.modules["yaml"] = None
        from kvactors.actors.cli import main
        main()
        """,
        *("run", scenario),
    )

    assert ended.returncode == 2
    assert "scenarios need the package 'yaml': pip install 'kvactors[scenarios]'" in ended.stderr


HELD = """\
import os
from pathlib import Path

from kvactors.actors.behaviours.behaviour import AgentBehaviour


class Held(AgentBehaviour):
    async def on_message(self, message, sender):
        if message.phase == "second":
            os.read(os.open(Path(__file__).with_name("held"), os.O_RDONLY), 1)
        return message.text
"""


@pytest.fixture
def held(scenario: str, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A run whose second process is held, until the end of this pipe to it closes."""
    text = TALK.replace("name: second\n", "name: second\n    restart: true\n")
    (tmp_path / scenario).write_text(text.replace("anna: {}", 'anna: {behaviour: "held:Held"}'))
    (tmp_path / "held.py").write_text(HELD)
    os.mkfifo(tmp_path / "held")
    command = [sys.executable, "-P", "-m", "kvactors.actors.cli", "run", scenario]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        pipe = os.open(tmp_path / "held", os.O_WRONLY)  # Once the process reads from it.
        yield process, pipe
        os.close(pipe)
        process.kill()


def is_read(pipe: int, *, seconds: float) -> bool:
    """Whether a pipe is read from for so long."""
    poll = select.poll()
    poll.register(pipe, 0)
    return not poll.poll(seconds * 1000)


def test_ctrl_c_behind_a_restart_says_how_to_go_on_and_nothing_else(
    held: tuple[subprocess.Popen[str], int],
) -> None:
    process, pipe = held
    # It cannot end the other one before that has heard of it.
    os.kill(process.pid, signal.SIGSTOP)

    os.killpg(process.pid, signal.SIGINT)

    assert is_read(pipe, seconds=1)
    os.kill(process.pid, signal.SIGCONT)
    _, told = process.communicate(timeout=60)
    assert told == "Go on with: kvactors run talk-1 --resume\n"
    assert process.returncode == 130
    assert not is_read(pipe, seconds=60)


@pytest.mark.slow
def test_the_process_behind_a_restart_ends_with_the_one_that_began_it(
    held: tuple[subprocess.Popen[str], int],
) -> None:
    process, pipe = held

    process.kill()

    assert not is_read(pipe, seconds=60)


@pytest.mark.slow
def test_what_ends_a_run_behind_a_restart_is_one_line(scenario: str, tmp_path: Path) -> None:
    rule = "name: second\n    restart: true\n    order: rule\n    rule: \"['eve']\"\n"
    (tmp_path / scenario).write_text(TALK.replace("name: second\n", rule))

    ran = run_child("from kvactors.actors.cli import main; main()", "run", scenario)

    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr
    assert "the rule of phase 'second' names 'eve', who is not in `who`\n" in ran.stderr
