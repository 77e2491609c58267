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

from kvactors.actors.cli_console import out, printable
from kvactors.actors.system import default_store
from kvactors.core.errors import InvalidAgentId
from kvactors.persistence.errors import LedgerUnreadable, NewerFormat
from kvactors.persistence.store import Store, StoredAgent

__all__ = ["StoredTurn", "no_agent", "opened", "read_turns", "show_agents", "show_transcript"]

TOKEN_BYTES = 4
SHOWN_FINGERPRINT = 8


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """One turn as the ledger has it. `finish` is set on answers."""

    role: str
    text: str
    tokens: int
    finish: str | None


def read_turns(records: Iterable[dict[str, Any]]) -> tuple[str | None, list[StoredTurn]]:
    """System prompt and turns of ledger records (their form: kvactors.core.transcript)."""
    system, turns = None, []
    for record in records:
        system = record.get("system", system)
        turns += [
            StoredTurn(
                turn["role"], turn["text"], len(turn["tokens"]) // TOKEN_BYTES, turn["finish"]
            )
            for turn in record["turns"]
        ]
    return system, turns


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
    system, turns = read_turns(records)
    if system is not None:
        _say("system", system, "")
    for turn in turns:
        cut = f", {turn.finish}" if turn.finish not in (None, "stop") else ""
        _say(turn.role, turn.text, f" ({turn.tokens} tokens{cut})")
    out.print(f"{len(turns)} turns, {sum(turn.tokens for turn in turns)} tokens", style="dim")


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
        _, turns = read_turns(store.read_ledger(agent.agent_id) or ())
        counts = [str(len(turns)), str(sum(turn.tokens for turn in turns))]
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
    store = Store(root, max_disk=None)
    try:
        yield store
    finally:
        store.close()
