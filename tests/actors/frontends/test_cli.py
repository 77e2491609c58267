"""The command line: what it prints, its status, and that errors end in one line."""

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stdout
from importlib.metadata import version
from pathlib import Path

import pytest
from store_saves import put
from typer.testing import CliRunner

from kvactors.actors import AgentSystem, Sampling
from kvactors.actors.frontends.cli.app import app
from kvactors.actors.frontends.cli.chat import Chat
from kvactors.actors.frontends.console.console import PrefillBar, printable
from kvactors.core.testing.models import tiny_llama
from kvactors.persistence import LedgerUnreadable, NewerFormat, Save
from kvactors.persistence.store.store import Store

runner = CliRunner()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one agent of two turns, and one whose id no file could have."""
    path = tmp_path_factory.mktemp("cli") / "store"
    with AgentSystem(tiny_llama(), store=path) as system:
        alice = system.spawn("alice", system_prompt="You are\x1b[31m red.")
        for text in ("hello", "again"):
            alice.ask(text, sampling=Sampling(max_tokens=4)).get(timeout=60)
        system.spawn("../[b]ob\n").observe("seen").get(timeout=60)
    return path


def run(*arguments: object) -> tuple[int, str, str]:
    result = runner.invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


def test_version_and_help() -> None:
    assert run("--version")[:2] == (0, f"kvactors {version('kvactors')}\n")
    assert "inspect" in run("--help")[1]
    assert "demo-ask" not in run("--help")[1]


def test_commands_that_read_a_store_load_no_model_library(store: Path) -> None:
    code = (
        "import sys; from kvactors.actors.cli import app\n"
        f"app(['agents', '--store', {str(store)!r}], standalone_mode=False)\n"
        f"app(['inspect', 'alice', '--store', {str(store)!r}], standalone_mode=False)\n"
        "loaded = {'mlx', 'mlx_lm', 'transformers'} & set(sys.modules)\n"
        "sys.exit(str(loaded) if loaded else 0)"
    )

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert ended.returncode == 0, ended.stderr


def test_agents_lists_turns_tokens_and_bytes(store: Path) -> None:
    status, out, _ = run("agents", "--store", store)

    assert status == 0
    (line,) = (line for line in out.splitlines() if line.startswith("alice"))
    assert line.split()[2] == "4"
    assert "../[b]ob" in out
    assert ": 2, " in out


def test_inspect_prints_the_transcript_and_no_control_characters(store: Path) -> None:
    status, out, _ = run("inspect", "alice", "--store", store)

    assert status == 0
    assert "hello" in out
    assert "You are\\x1b[31m red." in out
    assert "\x1b" not in out
    assert "4 turns" in out


def test_a_rewound_agent_is_shown_as_it_is_now(tmp_path: Path) -> None:
    with AgentSystem(tiny_llama(), store=tmp_path / "store") as system:
        alice = system.spawn("alice")
        for text in ("hello", "a mistake", "another"):
            alice.ask(text, sampling=Sampling(max_tokens=4)).get(timeout=60)
        tokens = alice.rewind(2).get(timeout=60).tokens

    _, shown, _ = run("inspect", "alice", "--store", tmp_path / "store")
    _, listed, _ = run("agents", "--store", tmp_path / "store")

    assert "hello" in shown
    assert "a mistake" not in shown
    assert f"2 turns, {tokens} tokens (4 turns were taken back or left out)" in shown
    (line,) = (line for line in listed.splitlines() if line.startswith("alice"))
    assert line.split()[2:4] == ["2", str(tokens)]


def one_line(status: int, err: str) -> str:
    assert status == 2
    assert "Traceback" not in err
    (line,) = err.strip().splitlines()
    assert line.startswith("error: ")
    return line


def test_looking_makes_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVACTORS_HOME", str(tmp_path / "none"))

    assert run("agents") == (0, f"No agents are stored in {tmp_path / 'none'}.\n", "")
    assert run("agents", "--store", tmp_path)[0] == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("json", [[], ["--json"]])
@pytest.mark.parametrize("name", ["nowhere", "a file", "a file/sub"])
def test_a_store_that_was_named_and_is_not_there_is_one_line_and_status_2(
    tmp_path: Path, name: str, json: list[str]
) -> None:
    (tmp_path / "a file").write_text("no store")

    status, out, err = run("agents", *json, "--store", tmp_path / name)

    assert f"no agents are stored in {tmp_path / name}" in one_line(status, err)
    assert out == ""


def test_an_unknown_agent_is_one_line_and_status_2(store: Path) -> None:
    status, _, err = run("inspect", "nobody", "--store", store)

    assert "'nobody'" in one_line(status, err)


@pytest.mark.parametrize(
    ("record", "told"),
    [({"version": 3}, "format version 3.*upgrade kvactors"), ({"version": 2}, "another form")],
)
def test_records_that_cannot_be_read_are_one_line_and_status_2(
    record: dict[str, object], told: str, tmp_path: Path
) -> None:
    with closing(Store(tmp_path)) as store:
        put(store, Save("alice", (record,), None, ()))

    status, _, err = run("inspect", "alice", "--store", tmp_path)

    assert re.search(told, one_line(status, err))
    with AgentSystem(tiny_llama(), store=tmp_path) as system:
        expected = NewerFormat if record["version"] == 3 else LedgerUnreadable
        with pytest.raises(expected):
            system.spawn("alice")


def test_a_store_that_is_open_here_is_one_line_and_status_2(store: Path) -> None:
    holder = Store(store)
    try:
        status, _, err = run("agents", "--store", store)
    finally:
        holder.close()

    assert "already open in this process" in one_line(status, err)


def test_a_store_locked_by_another_process_is_named_with_its_pid(store: Path) -> None:
    code = (
        "import sys; from kvactors.persistence.store.store import Store\n"
        f"store = Store({str(store)!r}); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        status, _, err = run("agents", "--store", store)
        holder.communicate()

    said = one_line(status, err)
    assert f"process {holder.pid}" in said
    assert f"`kvactors top --store {store}` shows what it does" in said


def test_a_missing_model_is_one_line_and_status_2(tmp_path: Path) -> None:
    for command in (["info", tmp_path / "no"], ["chat", "--model", tmp_path / "no"]):
        status, _, err = run(*command)

        assert "no model directory" in one_line(status, err)


def test_info_shows_the_cache_spec() -> None:
    status, out, _ = run("info")

    assert status == 0
    for word in ("32,768 tokens", "6.4 times less", "4 bits", "groups of 64"):
        assert word in out


def test_a_chat_goes_on_the_next_day(tmp_path: Path) -> None:
    command = ["chat", "--store", str(tmp_path), "--agent", "zoe"]

    first = runner.invoke(app, command, input="My cat is called Rex.\n/nonsense\n/quit\nnot read\n")
    second = runner.invoke(app, command, input="\n/help\n/memory\nhello\n")
    third = runner.invoke(app, command, input="/memory\n/forget\n/memory\n")

    assert "zoe is new" in first.stderr
    assert "no command /nonsense" in first.stderr
    assert "cold: 0 tokens reused" in first.stderr
    assert "zoe is restored: 2 turns" in second.stderr
    assert "warm: its KV is loaded from disk" in second.stderr
    assert "user: My cat is called Rex." in second.stdout
    assert "\nwarm: " in second.stderr
    assert "4 turns" in third.stderr
    assert "0 turns" in third.stderr
    # One line of the first was no command.
    assert (first.exit_code, second.exit_code, third.exit_code) == (1, 0, 0)
    assert "not read" not in first.stdout


@pytest.fixture
def talking(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """`talk` of a chat with a random model that has no end of turn."""
    with AgentSystem(tiny_llama(), store=False) as system:
        yield Chat(system, "alice", None, PrefillBar()).talk


def test_ctrl_c_cancels_the_reply_and_not_the_chat(
    talking: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        """Ctrl-C is pressed while the first piece is shown."""

        interrupted = False

        def write(self, text: str) -> int:
            if not self.interrupted:
                self.interrupted = True
                raise KeyboardInterrupt
            return super().write(text)

    with redirect_stdout(Terminal()):
        talking("hello")
    talking("again")

    first, second = capsys.readouterr().err.strip().splitlines()
    assert first.endswith("cancelled")
    assert second.startswith("hot: ")


@pytest.mark.slow
def test_ctrl_c_at_the_prompt_clears_the_line_and_ctrl_d_ends(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    command = [sys.executable, "-P", "-m", "kvactors.actors.cli", "chat", "--store", str(tmp_path)]
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    ) as process:
        os.close(terminal)
        try:
            shown = read_until(controller, b"> ")
            # A signal between the prompt and the read that follows is seen after the read.
            process.send_signal(signal.SIGINT)
            while not select.select([controller], [], [], 1)[0]:
                process.send_signal(signal.SIGINT)
            shown += read_until(controller, b"> ")
            os.write(controller, b"\x04")
            process.wait(timeout=60)
        finally:
            process.kill()
    os.close(controller)

    assert b"is new" in shown
    assert b"Ctrl-D ends the chat" in shown
    assert process.returncode == 0


def read_until(descriptor: int, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        assert select.select([descriptor], [], [], 60)[0], data
        data += os.read(descriptor, 1024)
    return data


def test_what_others_wrote_cannot_move_the_cursor() -> None:
    assert printable("a\x1b[2J\r\n\tb\ud800é") == "a\\x1b[2J\\r\n\tb\\ud800é"
