"""Odd names, odd input, odd places: each is shown as it is, or refused in one line."""

import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from store_saves import kv_save, put
from typer.testing import CliRunner

from kvactors.actors import AgentSystem, default_store
from kvactors.actors.frontends.cli.app import app
from kvactors.actors.frontends.console.child import child_command
from kvactors.actors.frontends.console.options import new_file
from kvactors.core.errors import InvalidConfig
from kvactors.persistence import Store
from kvactors.persistence.testing.doubles import example_segment

WAIT = 120


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("name", ["[draft] alice", "x[/y]", "[bold]", ":key:"])
def test_a_name_that_looks_like_markup_is_shown_as_it_is(tmp_path: Path, name: str) -> None:
    root = tmp_path / "[old]x[/b]:key:"
    store = Store(root)
    put(store, kv_save(name, example_segment(0, 40)))
    store.close()

    assert name.split()[0] in run("agents", "--store", root)[1]
    assert run("store", "rm", name, "--store", root) == (0, f"{name} is forgotten.\n", "")
    assert f"agents in {root}: 0" in run("agents", "--store", root)[1]
    empty = tmp_path / "[i]empty"
    empty.mkdir()
    assert run("agents", "--store", empty)[1] == f"No agents are stored in {empty}.\n"


@pytest.mark.parametrize("columns", ["30", "60", "80"])
@pytest.mark.parametrize("screen", [{}, {"FORCE_COLOR": "1"}], ids=["pipe", "terminal"])
def test_an_id_stands_in_one_piece_however_narrow_a_terminal_is(
    tmp_path: Path, screen: dict[str, str], columns: str
) -> None:
    names = ["c-21504aeb5294468e", "c-e5294468e21504ab"]
    with closing(Store(tmp_path)) as store:
        put(store, *(kv_save(name, example_segment(0, 40)) for name in names))

    command = ["agents", "--store", str(tmp_path)]
    shown = CliRunner(env={"COLUMNS": columns, **screen}).invoke(app, command).stdout.splitlines()

    listed = [line for line in shown if line.startswith("c-")]
    assert [line.split()[0] for line in listed] == names
    assert all(re.search(r":\d\d$", line.rstrip()) for line in listed)


def test_an_id_that_is_longer_than_a_line_leaves_the_others_their_columns(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        put(store, *(kv_save(name, example_segment(0, 40)) for name in ("bob", "x" * 200)))

    def lines(**screen: str) -> list[str]:
        command = ["agents", "--store", str(tmp_path)]
        return CliRunner(env=screen).invoke(app, command).stdout.splitlines()

    assert "x" * 200 in "".join(lines())
    assert max(map(len, lines(FORCE_COLOR="1", COLUMNS="80"))) < 200
    assert "".join(line.split()[0] for line in lines(FORCE_COLOR="1") if "xx" in line) == "x" * 200


def test_a_home_in_the_environment_is_the_same_for_programs_and_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KVACTORS_HOME", "~/mem")

    assert default_store() == tmp_path / "mem"
    assert f"stored in {tmp_path / 'mem'}" in run("agents")[1]


def test_a_home_that_nobody_has_is_refused_in_one_line() -> None:
    for words in (
        ["agents", "--store", "~nobody-here/x"],
        ["demo", "--trace", "~nobody-here/x.json"],
    ):
        code, _, error = run(*words)
        assert (code, "Traceback" in error) == (2, False)
        assert "~nobody-here" in " ".join(error.split())
    with pytest.raises(InvalidConfig, match="~nobody-here/x"):
        AgentSystem(store="~nobody-here/x")


@pytest.mark.parametrize(
    "command",
    ["agents", "inspect x", "store verify", "chat", "top", "demo", "stress", "serve", "node"],
)
def test_a_store_without_a_name_is_not_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)

    code, _, error = run(*command.split(), "--store", "")

    assert code == 2
    assert "an empty text names no folder" in " ".join(error.replace("│", "").split())
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_typed_bytes_that_are_no_text_do_not_end_a_chat(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "kvactors.actors.cli", "chat", "--store", tmp_path],
        input=b"Caf\xe9\n/memory\n",
        capture_output=True,
        timeout=WAIT,
    )

    assert ended.returncode == 0, ended.stderr
    assert b"Traceback" not in ended.stderr


def test_a_chat_whose_stdin_is_closed_is_refused_in_one_line(tmp_path: Path) -> None:
    command = child_command("chat", "--store", tmp_path / "new")

    ended = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command], capture_output=True, text=True, timeout=WAIT
    )

    assert ended.returncode == 2
    assert ended.stderr == "error: stdin is closed: a chat reads what you say from there\n"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["x.foo", "x"])
def test_a_picture_of_no_form_is_refused_before_anything_is_told(tmp_path: Path, name: str) -> None:
    code, said, error = run("demo", "--agents", "1", "--plot", tmp_path / name)

    assert (code, said) == (2, "")
    assert "such as x.png" in " ".join(error.split())
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "option", ["demo --trace", "stress --report", "bench --json", "export bob"]
)
def test_a_file_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, option: str
) -> None:
    nobody = tmp_path / "itself.json"
    nobody.symlink_to(nobody)

    code, said, error = run(*option.split(), nobody)

    assert (code, said) == (2, "")
    assert "cannot be written" in " ".join(error.replace("│", "").split())


def test_trying_whether_a_file_can_be_written_leaves_all_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("{}")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("new.json")

    for name in ("old.json", "new.json", "pipe", "link"):
        assert new_file(str(tmp_path / name)) == tmp_path / name

    assert (tmp_path / "old.json").read_text() == "{}"
    assert {path.name for path in tmp_path.iterdir()} == {"old.json", "pipe", "link"}


def test_a_command_in_a_process_of_its_own_takes_no_module_from_the_working_directory(
    tmp_path: Path,
) -> None:
    for name in ("random", "kvactors"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')")

    ended = subprocess.run(
        child_command("stress", "--help"), cwd=tmp_path, capture_output=True, timeout=WAIT
    )

    assert ended.returncode == 0, ended.stderr


def test_a_model_by_half_its_name_on_the_hub_is_told_how_names_are() -> None:
    code, _, error = run("info", "gpt2")

    assert code == 2
    assert "OWNER/NAME" in " ".join(error.split())
