"""Where the command writes: results to stdout, everything else to stderr; and what is typed."""

import json
import select
import sys
import termios
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

__all__ = [
    "PrefillBar",
    "agreed",
    "complain",
    "err",
    "out",
    "print_json",
    "print_whole",
    "printable",
    "progress",
    "read_line",
    "stepping",
    "unechoed",
    "working",
]

# Shorter prefills end before a bar could be read.
WORTH_A_BAR = 1024

# What users named is no markup, and no picture.
out = Console(highlight=False, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, markup=False, emoji=False)


def printable(text: str) -> str:
    """Text that any terminal can show: control characters and lone surrogates are escaped.

    What models and users wrote must not move the cursor or break the encoding.
    """
    return "".join(_escaped(c) if _is_control(c) else c for c in text)


def _is_control(character: str) -> bool:
    return character not in "\n\t" and unicodedata.category(character) in ("Cc", "Cs")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def print_json(found: dict[str, Any]) -> None:
    """One JSON object on stdout, in ASCII: any locale can show it."""
    print(json.dumps(found, indent=2))


def print_whole(table: Table) -> None:
    """A table as wide as its words are: a narrow terminal goes on in the next line, and whoever
    reads a pipe finds each word in one piece."""
    endless = out.options.update(max_width=sys.maxsize)
    table.width = out.measure(table, options=endless).maximum
    out.print(table, crop=False)


def complain(error: BaseException | str) -> None:
    """One red line on stderr; further lines of the message are joined to it."""
    text = " ".join(str(error).split()) or type(error).__name__
    err.print(Text(f"error: {printable(text)}", style="bold red"), soft_wrap=True)


@contextmanager
def unechoed() -> Iterator[None]:
    """What is typed at the terminal meanwhile does not show in what is printed, and if this ends by
    Ctrl-C or an error it is dropped: the shell is not to run it."""
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    _echo(terminal, on=False)
    try:
        yield
    except BaseException:
        termios.tcflush(terminal, termios.TCIFLUSH)
        raise
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def read_line(prompt: str) -> str:
    """A line from the terminal, echoed. Within `unechoed` one that was typed before it was asked
    for shows behind the prompt. Raises EOFError, KeyboardInterrupt."""
    terminal = sys.stdin.fileno()
    typed_ahead = bool(select.select([terminal], [], [], 0)[0])
    _echo(terminal, on=True)
    try:
        line = input(prompt)
    finally:
        _echo(terminal, on=False)
    if typed_ahead:
        sys.stdout.write(f"{printable(line)}\n")
    return line


def agreed(question: str) -> bool:
    """Whether the user at the terminal says yes, within `unechoed`; Ctrl-D says no. Raises
    KeyboardInterrupt."""
    try:
        return read_line(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        sys.stdout.write("\n")
        return False


def _echo(terminal: int, *, on: bool) -> None:
    settings = termios.tcgetattr(terminal)
    settings[3] = settings[3] | termios.ECHO if on else settings[3] & ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, settings)


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on stderr while something runs that cannot say how far it is."""
    if not err.is_terminal:
        yield
        return
    with err.status(Text(what)):
        yield


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A progress bar on stderr if it is a terminal; call what is yielded once per step."""
    bar = _bar()
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


@contextmanager
def stepping(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr if it is a terminal; call what is yielded with (done, steps)."""
    bar = _bar()
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, steps: bar.update(task, completed=done, total=steps)


class PrefillBar:
    """Progress callback of AgentSystem: a bar on stderr for prefills that take a while."""

    def __init__(self) -> None:
        self._bar: Progress | None = None

    def __call__(self, agent_id: str, done: int, total: int) -> None:
        """Called on the GPU thread after every chunk of a prefill."""
        if self._bar is None and total >= WORTH_A_BAR and done < total:
            self._bar = _bar()
            self._bar.start()
            self._task = self._bar.add_task(f"prefill {printable(agent_id)}", total=total)
        if self._bar is None:
            return
        self._bar.update(self._task, completed=done)
        if done >= total:
            self.close()

    def close(self) -> None:
        """Take the bar away, if one is shown."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )
