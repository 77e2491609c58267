"""`kvactors chat` at a terminal: what is typed while it works, its questions, its options; and what
`store rm` asks."""

import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from store_saves import kv_save, put
from typer.testing import CliRunner

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.cli.app import app
from kvactors.persistence.store.store import Store
from kvactors.persistence.testing.doubles import example_segment

WAIT = 60
COMMAND = [sys.executable, "-P", "-m", "kvactors.actors.cli"]


class Terminal:
    """A command in a process of its own, at a terminal that the test types at and reads."""

    def __init__(self, *arguments: object) -> None:
        self.user, self.end = pty.openpty()
        self.shown = b""
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdin=self.end,
            stdout=self.end,
            stderr=self.end,
            start_new_session=True,
        )

    def read_until(self, text: bytes) -> bytes:
        """What is shown up to a text, from where the last call ended."""
        while text not in self.shown:
            assert select.select([self.user], [], [], WAIT)[0], self.shown
            self.shown += os.read(self.user, 1024)
        before, self.shown = self.shown.split(text, 1)
        return before + text

    def write(self, text: bytes) -> None:
        os.write(self.user, text)

    @property
    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.end)[3] & termios.ECHO)

    @property
    def unread(self) -> bool:
        """Whether something that was typed is left for the shell."""
        return bool(select.select([self.end], [], [], 0)[0])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.user)
        os.close(self.end)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal("chat", "--store", tmp_path, "--agent", "zoe")
    yield opened
    opened.close()


def until_silent(terminal: Terminal) -> None:
    """The chat has begun its work, and what is typed is not echoed any more."""
    terminal.read_until(b"Loading")
    assert not terminal.echoes


def test_what_is_typed_too_early_shows_behind_the_prompt_and_is_answered(
    terminal: Terminal,
) -> None:
    until_silent(terminal)
    terminal.write(b"My cat is called Rex.\n")

    assert b"My cat" not in terminal.read_until(b"> ")
    assert terminal.read_until(b"\r\n") == b"My cat is called Rex.\r\n"
    terminal.read_until(b"cold: ")
    terminal.read_until(b"> ")
    assert terminal.echoes
    terminal.write(b"/quit\n")
    assert terminal.process.wait(WAIT) == 0
    assert terminal.echoes


def test_what_was_typed_before_ctrl_c_is_not_left_for_the_shell(terminal: Terminal) -> None:
    until_silent(terminal)
    terminal.write(b"rm -rf everything\n")
    assert terminal.unread

    terminal.process.send_signal(signal.SIGINT)

    assert terminal.process.wait(WAIT) == 130
    assert not terminal.unread
    assert terminal.echoes


def test_forget_asks_before_it_forgets(terminal: Terminal, tmp_path: Path) -> None:
    terminal.read_until(b"> ")
    terminal.write(b"My cat is called Rex.\n")
    for answer, said in ((b"\n", b"nothing is forgotten"), (b"y\n", b"zoe remembers nothing")):
        terminal.read_until(b"> ")
        terminal.write(b"/forget\n")
        terminal.read_until(b"Forget all that zoe remembers? [y/N] ")
        terminal.write(answer)
        terminal.read_until(said)
    terminal.write(b"/quit\n")

    assert terminal.process.wait(WAIT) == 0
    assert not list((tmp_path / "agents").iterdir())


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A store of zoe alone."""
    with closing(Store(tmp_path)) as store:
        put(store, kv_save("zoe", example_segment(0, 8)))
    return tmp_path


@pytest.fixture
def removing(stored: Path) -> Iterator[Terminal]:
    """A question whether zoe is to be deleted."""
    opened = Terminal("store", "rm", "zoe", "--store", stored)
    opened.read_until(b"Delete zoe and all that it remembers, for good? [y/N] ")
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("answer", "said", "left"),
    [
        (b"y\n", b"zoe is forgotten", 0),
        (b"\n", b"nothing is deleted", 1),
        (b"\x04", b"nothing is deleted", 1),
    ],
    ids=["yes", "no", "ctrl-d"],
)
def test_rm_asks_at_a_terminal_before_it_deletes(
    removing: Terminal, stored: Path, answer: bytes, said: bytes, left: int
) -> None:
    removing.write(answer)
    removing.read_until(said)

    assert removing.process.wait(WAIT) == 0
    assert len(list((stored / "agents").iterdir())) == left
    assert removing.echoes


def test_ctrl_c_at_the_question_of_rm_deletes_nothing(removing: Terminal, stored: Path) -> None:
    removing.process.send_signal(signal.SIGINT)
    removing.write(b"\n")  # A signal just before the read is seen after it.

    assert removing.process.wait(WAIT) == 130
    assert list((stored / "agents").iterdir())
    assert removing.echoes


def test_rm_that_is_told_yes_does_not_ask(stored: Path) -> None:
    with closing(Terminal("store", "rm", "zoe", "--yes", "--store", stored)) as told:
        assert b"[y/N]" not in told.read_until(b"zoe is forgotten")
        assert told.process.wait(WAIT) == 0


def test_who_names_an_agent_without_the_option_is_told_of_it() -> None:
    refused = CliRunner().invoke(app, ["chat", "bob"])

    assert refused.exit_code == 2
    assert "say --agent bob" in " ".join(refused.stderr.replace("│", "").split())


@pytest.mark.slow
def test_options_say_how_replies_are_decoded(tmp_path: Path) -> None:
    def say(agent: str, *options: str) -> str:
        command = ["chat", "--store", str(tmp_path), "--agent", agent, *options]
        ended = CliRunner().invoke(app, command, input="My cat is called Rex.\n")
        assert ended.exit_code == 0
        return ended.stdout + ended.stderr.splitlines()[-1]

    assert "cut at max_tokens" in say("a", "--max-tokens", "2")
    drawn = [say(f"{seed}", "--temperature", "9", "--seed", f"{seed}") for seed in range(3)]
    assert len({said.splitlines()[0] for said in drawn}) == 3
    with AgentSystem(store=tmp_path) as system:
        assert len(system.spawn("a").transcript().turns[1].token_ids) == 2
    refused = CliRunner().invoke(app, ["chat", "--max-tokens", "0", "--model", "nowhere"])
    assert refused.exit_code == 2
    assert "max_tokens must be at least 1" in refused.stderr


def test_another_system_prompt_for_a_known_agent_is_refused_by_the_name_of_the_option(
    tmp_path: Path,
) -> None:
    def said(agent: str, *options: str) -> str:
        command = ["chat", "--store", str(tmp_path), "--agent", agent, *options]
        return CliRunner().invoke(app, command, input="hello\n").stderr.splitlines()[-1]

    said("plain")
    said("terse", "--system", "Be brief.")

    instead = ": leave --system out, or /forget it first"
    assert said("plain", "--system", "Be kind.") == (
        f"error: 'plain' is known, and has no system prompt{instead}"
    )
    assert said("terse", "--system", "Be kind.").endswith(
        f"has the system prompt 'Be brief.'{instead}"
    )


@pytest.mark.parametrize("failing", ["/nonsense", "too long " * 40_000])
def test_a_line_that_was_piped_and_failed_makes_the_status_1_and_the_others_go_on(
    tmp_path: Path, failing: str
) -> None:
    command = ["chat", "--store", str(tmp_path)]

    ended = CliRunner().invoke(app, command, input=f"{failing}\n/memory\n")

    assert ended.exit_code == 1
    assert ended.stderr.count("error: ") == 1
    assert "0 turns" in ended.stderr


@pytest.mark.slow
def test_at_a_terminal_a_line_that_failed_was_seen(terminal: Terminal) -> None:
    for line in (b"/nonsense\n", b"/quit\n"):
        terminal.read_until(b"> ")
        terminal.write(line)

    assert terminal.process.wait(WAIT) == 0


@pytest.mark.parametrize(
    "told", ['{"a', "[1]", '{"chat_template": "x"}', "[" * 100_000, '{"a": "\\ud83d"}']
)
def test_what_no_template_is_told_is_one_line_and_status_2(told: str) -> None:
    result = CliRunner().invoke(app, ["chat", "--template-kwargs", told])

    assert result.exit_code == 2
    assert "Invalid value for '--template-kwargs'" in result.output
    assert "Traceback" not in result.output
