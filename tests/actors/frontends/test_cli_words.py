"""What the command line says: help in full, choices, JSON, separators, in any locale; and that it
does not say that all is well where there is nothing."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from typer.testing import CliRunner

from kvactors.actors import AgentSystem, Sampling
from kvactors.actors.frontends.cli.app import app
from kvactors.actors.frontends.cli.store_commands import FormatName
from kvactors.actors.frontends.cli.stress import never_happened
from kvactors.core.testing.models import tiny_llama
from kvactors.persistence.formats.registry import FORMATS

runner = CliRunner()
SHORT = Sampling(max_tokens=4)
NAME = "zo\u00eb \u65e5"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with an agent whose id is not ASCII and who remembers more than a thousand tokens."""
    path = tmp_path_factory.mktemp("cli") / "store"
    with AgentSystem(tiny_llama(), store=path) as system:
        zoe = system.spawn(NAME, system_prompt="Be brief.")
        zoe.observe("a" * 1200).get(timeout=60)
        zoe.ask("caf\u00e9", sampling=SHORT).get(timeout=60)
    return path


def run(*arguments: object) -> tuple[int, str, str]:
    result = runner.invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


def one_line(status: int, err: str) -> str:
    assert status == 2
    (line,) = err.strip().splitlines()
    assert line.startswith("error: ")
    return line


# -- help ----------------------------------------------------------------------------------


def pages(command: Any, *path: str) -> list[tuple[tuple[str, ...], Any]]:
    """Every command with the words that lead to it."""
    found = [(path, command)]
    for name, inner in getattr(command, "commands", {}).items():
        found += pages(inner, *path, name)
    return found


def test_help_shows_every_word_that_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    shown = pages(typer.main.get_command(app))
    assert len(shown) > 15

    for path, command in shown:
        page = " ".join(run(*path, "--help")[1].split())
        assert run(*path, "-h")[1].split() == page.split(), path
        for option in command.params:
            said = getattr(option, "help", None)
            assert said is None or " ".join(said.split()) in page, (path, said)
    assert "(needs kvactors[plot])" in run("bench", "--help")[1]


def test_help_names_the_store_that_is_meant_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")

    for command in (["agents"], ["chat"], ["store", "verify"], ["export"]):
        assert "[default: ($KVACTORS_HOME, or ~/.kvactors)]" in run(*command, "--help")[1]


def test_the_formats_are_listed_as_they_are_and_others_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert get_args(FormatName) == FORMATS

    for command in (["export", "a", "f"], ["import", "f", "--agent", "a"]):
        assert f"<{'|'.join(FORMATS)}>" in run(command[0], "--help")[1]
        status, _, err = run(*command, "--format", "gguf")
        assert status == 2
        assert "'q4-flat'" in err


# -- JSON and numbers ----------------------------------------------------------------------


def test_numbers_have_separators(store: Path) -> None:
    (line,) = (line for line in run("agents", "--store", store)[1].splitlines() if NAME in line)
    assert "3" in line.split()
    assert any("," in word and word.replace(",", "").isdigit() for word in line.split())
    assert " (1,2" in run("inspect", NAME, "--store", store)[1]


def test_agents_as_json(store: Path, tmp_path: Path) -> None:
    status, out, _ = run("agents", "--json", "--store", store)

    found = json.loads(out)
    (agent,) = found["agents"]
    (kv,) = agent["models"].values()
    assert (status, agent["agent"], agent["turns"], agent["problem"]) == (0, NAME, 3, None)
    assert agent["tokens"] >= kv["tokens"] > 1200
    assert found["kv_bytes"] == kv["bytes"] > agent["ledger_bytes"] > 1200
    assert json.loads(run("agents", "--json", "--store", tmp_path)[1])["agents"] == []


def test_a_transcript_as_json(store: Path) -> None:
    found = json.loads(run("inspect", NAME, "--json", "--store", store)[1])

    assert (found["agent"], found["system"], found["gone"]) == (NAME, "Be brief.", 0)
    assert [turn["role"] for turn in found["turns"]] == ["user", "user", "assistant"]
    assert found["turns"][1]["text"] == "caf\u00e9"
    assert found["tokens"] == sum(turn["tokens"] for turn in found["turns"])


def test_what_verify_finds_as_json(store: Path, tmp_path: Path) -> None:
    copied = tmp_path / "store"
    subprocess.run(["cp", "-r", store, copied], check=True)
    sound = run("store", "verify", "--json", "--store", copied)
    segment = sorted(copied.rglob("seg-*"))[0]
    segment.write_bytes(segment.read_bytes()[:-1] + b"?")
    damaged = run("store", "verify", "--json", "--store", copied)

    assert (sound[0], json.loads(sound[1])["agents"], json.loads(sound[1])["bad"]) == (0, 1, [])
    assert damaged[0] == 1
    (bad,) = json.loads(damaged[1])["bad"]
    assert (bad["agent"], bad["file"]) == (NAME, str(segment.relative_to(copied)))


def test_an_agent_whose_first_frame_is_damaged_has_no_number_of_turns(
    store: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "store"
    subprocess.run(["cp", "-r", store, copied], check=True)
    subprocess.run(["rm", "-r", copied / "kv"], check=True)
    ledger = next(copied.rglob("ledger.log"))
    ledger.write_bytes(ledger.read_bytes()[:20] + b"?" + ledger.read_bytes()[21:])

    (agent,) = json.loads(run("agents", "--json", "--store", copied)[1])["agents"]

    assert (agent["turns"], agent["tokens"]) == (None, None)
    assert "ledger" in agent["problem"]


# -- nothing is not all well ---------------------------------------------------------------


@pytest.mark.parametrize("command", [["verify"], ["gc"], ["rm", "a"]])
def test_the_care_of_no_store_is_an_error(tmp_path: Path, command: list[str]) -> None:
    status, _, err = run("store", *command, "--store", tmp_path / "none")

    assert "no agents are stored in" in one_line(status, err)
    assert not (tmp_path / "none").exists()


def test_a_range_of_no_seeds_is_an_error() -> None:
    assert "such as 1..200, not '5..1'" in one_line(*run("stress", "--seeds", "5..1")[::2])
    assert "such as 1..200, not '1..'" in one_line(*run("stress", "--seeds", "1..")[::2])
    assert "such as 1..200, not ''" in one_line(*run("stress", "--seeds", "")[::2])


def test_options_that_would_do_nothing_are_refused_before_any_work(tmp_path: Path) -> None:
    beside = run("stress", "--seeds", "1", "--store", tmp_path, "--agents", "64")
    assert one_line(*beside[::2]).startswith("error: --agents, --store: --seeds has agents")
    joins = run("node", "--join", "a:1", "--lease", "3.0", "--store", tmp_path / "node")
    assert one_line(*joins[::2]).startswith("error: --lease: of the head alone")


@pytest.mark.parametrize(
    "command", ["stress --report", "demo --plot", "demo --trace", "bench --json", "export bob"]
)
def test_a_file_that_cannot_be_written_in_the_end_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    status, _, err = run(*command.split(), tmp_path / "nowhere" / "report")
    assert (status, "there is no folder" in err) == (2, True)
    status, _, err = run(*command.split(), tmp_path)
    assert (status, "is a folder: name a file" in err) == (2, True)


def test_an_export_is_no_use_of_an_agent(store: Path, tmp_path: Path) -> None:
    def last_used() -> Any:
        return json.loads(run("agents", "--json", "--store", store)[1])["agents"][0]["last_used"]

    for path in store.rglob("*.*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    before = last_used()

    for form in ("archive", "q4-flat"):
        named = ("--format", form, "--model", "tiny", "--store", store)
        assert run("export", NAME, tmp_path / form, *named)[0] == 0

    assert last_used() == before
    with AgentSystem(tiny_llama(), store=store) as system:
        assert system.spawn(NAME).ask("b", sampling=SHORT).get(timeout=60).cache == "warm"
    assert last_used() > before


def test_a_foreign_file_is_said_to_be_one_before_a_model_is_loaded(tmp_path: Path) -> None:
    letter, album = tmp_path / "letter.txt", tmp_path / "album.zip"
    letter.write_text("Dear Marta, the meeting is on Friday.")
    with zipfile.ZipFile(album, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("holiday.jpg", b"x" * 100)
    where, model = ("--agent", "a", "--store", tmp_path / "store"), ("--model", tmp_path / "none")

    for file, options, expected in (
        (letter, model, "letter.txt is neither an archive of kvactors nor a safetensors file"),
        (letter, (*model, "--format", "mlx-lm"), "letter.txt is neither"),
        (letter, (*model, "--format", "archive"), "is no archive of kvactors"),
        (album, (), "a zip file, and no archive of kvactors"),
    ):
        status, _, err = run("import", file, *options, *where)
        assert expected in one_line(status, err)


# -- stress --------------------------------------------------------------------------------


def test_a_stress_run_says_which_fault_left_no_trace() -> None:
    begun = {f"fault_{fault}": 2 for fault in ("model", "disk", "device")} | {"TurnFailed": 1}
    raised = {"raised_model": 1, "raised_disk": 1, "rebuilds": 1, "fault_restart": 1}
    asked = ["device", "disk", "kill", "model", "restart"]

    assert never_happened({"faults": asked, "kills": 0, "counts": begun}) == asked
    assert never_happened({"faults": asked, "kills": 1, "counts": begun | raised}) == []


@pytest.mark.slow
def test_a_stress_run_keeps_its_agents_where_it_is_told_and_gives_units(tmp_path: Path) -> None:
    root = tmp_path / "kept"
    short = ["stress", "--agents", "2", "--minutes", "0.01", "--faults", "kill", "--store", root]

    status, out, err = run(*short)
    again = run(*short)

    assert status == 0, out + err
    rows = dict(line.strip().split(maxsplit=1) for line in out.splitlines() if line.strip())
    assert rows["minutes"] == "0.01 min"
    assert rows["worst"].startswith("wait")
    assert rows["worst"].endswith(" s")
    assert rows["most"].endswith("% of the budget")
    assert rows["never"].split() == ["happened", "kill"]
    assert (root / "store" / "agents").is_dir()
    assert "is not empty: faults are not let loose on it" in one_line(*again[::2])


# -- locales -------------------------------------------------------------------------------

PLAIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def in_a_plain_locale(*arguments: object, typed: str = "") -> tuple[int, bytes, bytes]:
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "kvactors.actors.cli", *map(str, arguments)],
        env={**os.environ, **PLAIN},
        input=typed.encode(),
        capture_output=True,
        timeout=120,
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_without_utf8_ids_are_found_and_shown_escaped(store: Path) -> None:
    status, out, err = in_a_plain_locale("agents", "--store", store)
    assert (status, b"zo\\xeb \\u65e5" in out) == (0, True), err
    status, out, err = in_a_plain_locale("inspect", NAME, "--store", store)
    assert (status, b"caf\\xe9" in out) == (0, True), err
    status, out, err = in_a_plain_locale("inspect", "Ren\u00e9", "--store", store)
    assert (status, b"no agent 'Ren\\xe9' in" in err, b"Traceback" in err) == (2, True, False)


@pytest.mark.slow
def test_without_utf8_a_chat_takes_what_is_typed_as_utf8(tmp_path: Path) -> None:
    arguments = ["chat", "--agent", "Ren\u00e9", "--system", "Sois gentil, \u00e9coute."]

    status, _, err = in_a_plain_locale(*arguments, "--store", tmp_path, typed="caf\u00e9\n/quit\n")

    assert status == 0, err
    found = json.loads(run("inspect", "Ren\u00e9", "--json", "--store", tmp_path)[1])
    assert (found["system"], found["turns"][0]["text"]) == (arguments[4], "caf\u00e9")
