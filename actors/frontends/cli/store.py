"""`kvactors agents` and `kvactors inspect`: read a store without a model and without MLX."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from kvactors.actors.frontends.cli.console import out, printable
from kvactors.actors.frontends.cli.key import stored_key
from kvactors.actors.system.system import default_store
from kvactors.core.errors import InvalidAgentId
from kvactors.persistence.errors import LedgerUnreadable, NewerFormat
from kvactors.persistence.store.store import Store, StoredAgent

__all__ = [
    "StoredTranscript",
    "StoredTurn",
    "no_agent",
    "opened",
    "read_transcript",
    "show_agents",
    "show_transcript",
]

TOKEN_BYTES = 4
SHOWN_FINGERPRINT = 8


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """One turn as the ledger has it. `finish` is set on answers, `stands_for` on a summary:
    how many turns it is of."""

    role: str
    text: str
    tokens: int
    finish: str | None
    stands_for: int


@dataclass(frozen=True, slots=True)
class StoredTranscript:
    """What ledger records add up to. `gone` counts turns that they hold and that are no longer
    part of it: a rewind or a diverging prompt took them back, whole or in part, or they left at
    the end of the context."""

    system: str | None
    turns: list[StoredTurn]
    gone: int

    @property
    def tokens(self) -> int:
        """Tokens of all turns."""
        return sum(turn.tokens for turn in self.turns)


def read_transcript(records: Iterable[dict[str, Any]]) -> StoredTranscript:
    """Replay ledger records (their form: kvactors.core.conversation.transcript)."""
    system, turns, gone = None, list[StoredTurn](), 0
    for record in records:
        system = record.get("system", system)
        kept = record.get("keep", len(turns))
        added = [_stored_turn(entry) for entry in record["turns"]]
        gone += len(turns) - kept - _repeated(turns[kept:], added)
        turns = [*turns[:kept], *added]
    return StoredTranscript(system, turns, gone)


def _stored_turn(entry: dict[str, Any]) -> StoredTurn:
    tokens = len(entry["tokens"]) // TOKEN_BYTES
    stands_for = entry.get("stands_for", 0)
    return StoredTurn(entry["role"], entry["text"], tokens, entry["finish"], stands_for)


def _repeated(cut: list[StoredTurn], added: list[StoredTurn]) -> int:
    """How many of the turns that a record cuts off it has again: they stay, behind a gap."""
    old = [(turn.role, turn.text) for turn in cut]
    new = [(turn.role, turn.text) for turn in added[bool(added and added[0].stands_for) :]]
    most = min(len(old), len(new))
    return next(n for n in range(most, -1, -1) if old[len(old) - n :] == new[:n])


def show_agents(path: Path | None) -> None:
    """A table of everything stored."""
    with opened(path) as store:
        if store is None:
            return
        found = store.agents()
        table = Table(box=None, pad_edge=False)
        for name in ("agent", "models"):
            table.add_column(name, overflow="fold")
        for name in ("turns", "tokens", "bytes", "shared", "last used"):
            table.add_column(name, justify="right", no_wrap=True)
        for agent in found:
            table.add_row(*_row(store, agent))
        out.print(table)
        kept = sum(agent.ledger_bytes for agent in found)
        out.print(
            f"\nagents in {store.root}: {len(found)}, {decimal(kept)} of ledgers, "
            f"{decimal(store.kv_size)} of KV",
            soft_wrap=True,
        )


def show_transcript(agent_id: str, path: Path | None) -> None:
    """The turns of one agent. Raises InvalidAgentId if it is not stored."""
    with opened(path) as store:
        records = None if store is None else store.read_ledger(agent_id)
    if records is None:
        raise no_agent(agent_id, path)
    stored = read_transcript(records)
    if stored.system is not None:
        _say("system", stored.system, "")
    for turn in stored.turns:
        cut = f", {turn.finish}" if turn.finish not in (None, "stop") else ""
        summary = f", a summary of {turn.stands_for} turns" if turn.stands_for else ""
        _say(turn.role, turn.text, f" ({turn.tokens} tokens{cut}{summary})")
    gone = f" ({stored.gone} turns were taken back or left out)" if stored.gone else ""
    out.print(f"{len(stored.turns)} turns, {stored.tokens} tokens{gone}", style="dim")


def no_agent(agent_id: str, path: Path | None) -> InvalidAgentId:
    """The error for an id that is not stored."""
    root = path or default_store()
    return InvalidAgentId(
        f"no agent {agent_id!r} in {root}: `kvactors agents --store {root}` lists what there is"
    )


def _say(role: str, text: str, note: str) -> None:
    line = Text(printable(role), style="bold cyan")
    line.append(note, style="dim")
    line.append(f"\n  {printable(text)}\n".replace("\n", "\n  ").rstrip() + "\n", style="default")
    out.print(line, soft_wrap=True)


def _row(store: Store, agent: StoredAgent) -> list[Text]:
    try:
        stored = read_transcript(store.read_ledger(agent.agent_id) or ())
        counts = [str(len(stored.turns)), str(stored.tokens)]
    except (LedgerUnreadable, NewerFormat, KeyError, TypeError):
        counts = ["unreadable", "-"]
    models = " ".join(name[:SHOWN_FINGERPRINT] for name in sorted(agent.kv_bytes)) or "none"
    size = agent.ledger_bytes + sum(agent.kv_bytes.values())
    used = datetime.fromtimestamp(agent.last_used).isoformat(" ", "seconds")
    style = "red" if agent.problem else ""
    cells = [
        printable(agent.agent_id),
        models,
        *counts,
        decimal(size),
        decimal(agent.shared_bytes),
        used,
    ]
    return [Text(cell, style=style) for cell in cells]


@contextmanager
def opened(path: Path | None) -> Iterator[Store | None]:
    """The store, locked while it is read; None, and a line, where there is none.

    Looking must not make a store: opening one would.
    """
    root = (path or default_store()).expanduser()
    if not (root / "agents").is_dir():
        out.print(f"No agents are stored in {root}.", soft_wrap=True)
        yield None
        return
    store = Store(root, max_disk=None, encryption_key=stored_key())
    try:
        yield store
    finally:
        store.close()
