"""`kvactors chat`: a conversation in the terminal that goes on the next day. What the agent says
goes to stdout, what it thinks to stderr."""

import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rich.text import Text

from kvactors.actors.agents.handle import Agent
from kvactors.actors.frontends.console.console import (
    PrefillBar,
    agreed,
    complain,
    err,
    out,
    printable,
    read_line,
    unechoed,
    working,
)
from kvactors.actors.frontends.console.key import stored_key
from kvactors.actors.frontends.server.dialect.dialect import Dialect, read_whole
from kvactors.actors.frontends.server.exchange.events import Event, Said, Thought
from kvactors.actors.frontends.server.exchange.inquiry import Inquiry
from kvactors.actors.system.system import AgentSystem, default_store
from kvactors.actors.turns.options import AskOptions
from kvactors.actors.turns.reply import Reply
from kvactors.core.errors import (
    EngineDied,
    InvalidInput,
    KvactorsError,
    SystemPromptMismatch,
    SystemStopped,
)
from kvactors.persistence.files.home import expanded
from kvactors.persistence.files.naming import MANIFEST_NAME, encode_agent_id

__all__ = ["Chat", "run_chat"]

HELP = """\
/more    go on with the last answer
/memory  what the agent remembers
/forget  delete its memory, on disk too, and begin anew
/quit    end; Ctrl-D does the same
Ctrl-C   stop the reply"""


def run_chat(
    agent_id: str, model: str, store: Path | None, system_prompt: str | None, asked: AskOptions
) -> bool:
    """Chat with `agent_id` of a `store` under a `model`, with a `system_prompt` if it is new,
    each line `asked` so, until /quit or the end of input. Whether each line went well, or
    somebody at a terminal saw which did not. Raises KvactorsError."""
    if sys.stdin is None:
        raise InvalidInput("stdin is closed: a chat reads what you say from there")
    bar = PrefillBar()
    root = expanded(store or default_store())
    with unechoed():
        system = AgentSystem(model, store=root, progress=bar, encryption_key=stored_key())
        with working(f"Loading {printable(model)} …"):
            system.start()
        try:
            chat = Chat(system, agent_id, system_prompt, bar, asked)
            chat.greet(root)
            chat.loop()
            return chat.well or sys.stdin.isatty()
        finally:
            bar.close()
            system.stop()


class Chat:
    """One conversation with `agent_id` of `system`, spawned with `system_prompt`: what is read from
    stdin, and what is shown of it. `bar` shows prefills, each line is `asked` so. `well`:
    nothing that was read failed so far."""

    def __init__(
        self,
        system: AgentSystem,
        agent_id: str,
        system_prompt: str | None,
        bar: PrefillBar,
        asked: AskOptions | None = None,
    ) -> None:
        self._system = system
        self._asked: AskOptions = asked or {}
        self._system_prompt = system_prompt
        self._bar = bar
        self.well = True
        self._agent: Agent = _spawned(system, agent_id, system_prompt)

    def greet(self, root: Path) -> None:
        """Say who is there, and whether its KV is."""
        name = printable(self._agent.agent_id)
        memory = self._agent.transcript()
        if not memory.turns:
            _note(f"{name} is new. /help shows the commands.")
            return
        length = f"{len(memory.turns):,} turns, {len(memory.token_ids):,} tokens"
        folder = root / "kv" / self._system.info.fingerprint
        if (folder / encode_agent_id(self._agent.agent_id) / MANIFEST_NAME).exists():
            state = "warm: its KV is loaded from disk"
        else:
            state = "cold: its first reply re-prefills"
        _note(f"{name} is restored: {length}; {state}. /help shows the commands.")

    def loop(self) -> None:
        """Read lines until the user is done."""
        while (line := _read_line()) is not None:
            if not line.strip():
                continue
            if line.startswith("/"):
                if not self._command(line.strip()):
                    return
            else:
                self.talk(line)

    def _command(self, line: str) -> bool:
        """Run a command; False ends the chat."""
        if line == "/quit":
            return False
        if line == "/more":
            self.talk(None)
        elif line == "/memory":
            self._show_memory()
        elif line == "/forget":
            self._forget()
        elif line == "/help":
            _note(HELP)
        else:
            self._complain(f"there is no command {line.split()[0]}: /help shows the commands")
        return True

    def _show_memory(self) -> None:
        memory = self._agent.transcript()
        if self._agent.system_prompt is not None:
            _line("system", self._agent.system_prompt)
        for turn in memory.turns:
            _line(turn.role, turn.text)
        _note(
            f"{len(memory.turns):,} turns, {len(memory.token_ids):,} of "
            f"{self._system.spec.context:,} tokens"
        )

    def _forget(self) -> None:
        agent_id = self._agent.agent_id
        if sys.stdin.isatty() and not _agreed(f"Forget all that {printable(agent_id)} remembers?"):
            _note("nothing is forgotten")
            return
        self._system.forget(agent_id)
        self._agent = self._system.spawn(agent_id, self._system_prompt)
        _note(f"{printable(agent_id)} remembers nothing.")

    def talk(self, line: str | None) -> None:
        """Show the reply to a line as it comes, of none what follows the last answer; Ctrl-C stops
        the reply alone."""
        try:
            turns = self._agent.transcript().turns if line is None else ()
            asked: AskOptions = {**self._asked, "continue_final_message": line is None}
            stream = self._agent.stream(line, **asked)
            told = self._asked.get("template_kwargs")
            shown = _Shown(Dialect(self._system.chat.told(told)))
            if turns:
                shown.go_on(turns[-1].text)
            with suppress(KeyboardInterrupt), stream:
                for piece in stream:
                    self._bar.close()
                    shown.add(piece.text)
            # Interrupted, it ends at the next step: what it still said is remembered too.
            reply = stream.reply
            self._bar.close()
            shown.end(reply.text)
            _note(_summary(reply))
        except (EngineDied, SystemStopped):
            raise
        except KvactorsError as error:
            _write("\n")
            self._complain(error)

    def _complain(self, error: BaseException | str) -> None:
        self.well = False
        complain(error)


class _Shown:
    """What is shown of an answer, by the `dialect` of its model: what it says, and dim what was
    thought before."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._reader = dialect.reader(Inquiry(()), str)
        self._read = 0
        self._thought = ""

    def go_on(self, text: str) -> None:
        """It goes on with a `text`, which was shown."""
        self._reader.begin(text, read_whole(self._dialect, Inquiry(()), text).text)

    def add(self, text: str) -> None:
        """Some more of its text."""
        self._read += len(text)
        self._show(self._reader.feed(text))

    def end(self, text: str) -> None:
        """All of its `text`: what was not read yet is shown, too."""
        self.add(text[self._read :])
        self._show(self._reader.end())
        self._leave_thought()
        _write("\n")

    def _show(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Thought):
                self._think(event.text)
            elif isinstance(event, Said):
                self._leave_thought()
                _write(event.text)

    def _think(self, text: str) -> None:
        shown = text if self._thought else text.lstrip()
        self._thought += shown
        err.print(Text(printable(shown), style="dim"), end="", soft_wrap=True)

    def _leave_thought(self) -> None:
        """What follows a thought stands on a line of its own."""
        if self._thought and not self._thought.endswith("\n"):
            err.print()
        self._thought = ""


def _spawned(system: AgentSystem, agent_id: str, system_prompt: str | None) -> Agent:
    """An agent, new or known. Raises SystemPromptMismatch, which names the option."""
    try:
        return system.spawn(agent_id, system_prompt)
    except SystemPromptMismatch as error:
        own = system.spawn(agent_id).system_prompt
        has = "no system prompt" if own is None else f"the system prompt {own!r}"
        raise SystemPromptMismatch(
            f"{agent_id!r} is known, and has {has}: leave --system out, or /forget it first"
        ) from error


def _read_line() -> str | None:
    """The next line, or None at the end of input. Ctrl-C at the prompt only clears it."""
    asking = sys.stdin.isatty()
    while True:
        try:
            return read_line("> ") if asking else input()
        except EOFError:
            if asking:
                _write("\n")
            return None
        except KeyboardInterrupt:
            _write("\n")
            _note("/quit or Ctrl-D ends the chat")


def _agreed(question: str) -> bool:
    """Whether the user at the terminal says yes; Ctrl-C says no, too."""
    with suppress(KeyboardInterrupt):
        return agreed(question)
    _write("\n")
    return False


def _summary(reply: Reply) -> str:
    usage = reply.usage
    ended = {"stop": "", "length": ", cut at max_tokens", "cancelled": ", cancelled"}
    return (
        f"{reply.cache}: {usage.reused_tokens:,} tokens reused, "
        f"{usage.prefilled_tokens:,} prefilled, "
        f"first after {1000 * reply.timing.first_token:.0f} ms{ended[reply.finish_reason]}"
    )


def _write(text: str) -> None:
    sys.stdout.write(printable(text))
    sys.stdout.flush()


def _note(text: str) -> None:
    """What the program says, apart from what the agent says."""
    err.print(Text(text, style="dim"), soft_wrap=True)


def _line(role: str, text: str) -> None:
    out.print(Text.assemble((f"{printable(role)}: ", "bold cyan"), printable(text)), soft_wrap=True)
