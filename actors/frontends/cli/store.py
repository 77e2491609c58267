"""`kvactors agents` and `kvactors inspect`: read a store without a model and without MLX."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from kvactors.actors.frontends.console.console import out, print_json, print_whole, printable
from kvactors.actors.frontends.console.key import stored_key
from kvactors.actors.system.export import readable
from kvactors.actors.system.system import default_store
from kvactors.core.errors import InvalidAgentId, InvalidConfig
from kvactors.persistence.errors import LedgerUnreadable, NewerFormat, StoreLocked
from kvactors.persistence.files.home import expanded
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
# Characters: longer ids and lists of models go on below.
LONGEST_AT_A_TERMINAL = 40


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


def read_transcript(agent_id: str, records: Iterable[dict[str, Any]] | None) -> StoredTranscript:
    """What ledger `records` of `agent_id` tell. Raises LedgerUnreadable, NewerFormat."""
    try:
        return _replayed(readable(agent_id, records))
    except (KeyError, TypeError, ValueError) as error:
        reason = f"it holds records of another form: {error!r}"
        raise LedgerUnreadable(f"of {agent_id!r}", reason) from error


def _replayed(records: Iterable[dict[str, Any]]) -> StoredTranscript:
    """Of ledger records (their form: kvactors.core.conversation.transcript)."""
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


def show_agents(path: Path | None, *, as_json: bool = False) -> None:
    """A table of everything stored, or one JSON object. Raises InvalidConfig for a `path` where no
    folder is: only the default one may not be there yet."""
    root = expanded(path or default_store())
    if not _holds_agents(root) and (path is None or root.is_dir()):
        if as_json:
            print_json({"store": str(root), "kv_bytes": 0, "agents": []})
        else:
            out.print(f"No agents are stored in {printable(str(root))}.", soft_wrap=True)
        return
    with opened(path) as store:
        found = store.agents()
        if as_json:
            agents = [_as_json(store, agent) for agent in found]
            print_json({"store": str(root), "kv_bytes": store.kv_size, "agents": agents})
            return
        table = Table(box=None, pad_edge=False, collapse_padding=True)
        for name in ("agent", "models"):
            most = LONGEST_AT_A_TERMINAL if out.is_terminal else None
            table.add_column(name, overflow="fold", max_width=most)
        for name in ("turns", "tokens", "bytes", "shared", "last used"):
            table.add_column(name, justify="right", no_wrap=True)
        for agent in found:
            table.add_row(*_row(store, agent))
        print_whole(table)
        kept = sum(agent.ledger_bytes for agent in found)
        out.print(
            f"\nagents in {printable(str(root))}: {len(found):,}, {decimal(kept)} of ledgers, "
            f"{decimal(store.kv_size)} of KV",
            soft_wrap=True,
        )


def show_transcript(agent_id: str, path: Path | None, *, as_json: bool = False) -> None:
    """The turns of `agent_id` in the store at `path`, `as_json` as one object. Raises
    InvalidAgentId if it is not stored, LedgerUnreadable, NewerFormat."""
    with opened(path) as store:
        records = store.read_ledger(agent_id)
    if records is None:
        raise no_agent(agent_id, path)
    stored = read_transcript(agent_id, records)
    if as_json:
        print_json({"agent": agent_id, **asdict(stored), "tokens": stored.tokens})
        return
    if stored.system is not None:
        _say("system", stored.system, "")
    for turn in stored.turns:
        cut = f", {turn.finish}" if turn.finish not in (None, "stop") else ""
        summary = f", a summary of {turn.stands_for:,} turns" if turn.stands_for else ""
        _say(turn.role, turn.text, f" ({turn.tokens:,} tokens{cut}{summary})")
    gone = f" ({stored.gone:,} turns were taken back or left out)" if stored.gone else ""
    out.print(f"{len(stored.turns):,} turns, {stored.tokens:,} tokens{gone}", style="dim")


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


def _transcript_of(store: Store, agent: StoredAgent) -> StoredTranscript | None:
    """None for one that this version cannot read."""
    if agent.problem:
        # Its id may be unknown, too.
        return None
    try:
        return read_transcript(agent.agent_id, store.read_ledger(agent.agent_id))
    except (LedgerUnreadable, NewerFormat, OSError):
        return None


def _as_json(store: Store, agent: StoredAgent) -> dict[str, Any]:
    stored = _transcript_of(store, agent)
    return {
        "agent": agent.agent_id,
        "models": {
            name: {"bytes": size, "tokens": agent.kv_tokens[name]}
            for name, size in sorted(agent.kv_bytes.items())
        },
        "turns": None if stored is None else len(stored.turns),
        "tokens": None if stored is None else stored.tokens,
        "ledger_bytes": agent.ledger_bytes,
        "shared_bytes": agent.shared_bytes,
        "last_used": _moment(agent.last_used),
        "problem": agent.problem,
    }


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).isoformat(" ", "seconds")


def _row(store: Store, agent: StoredAgent) -> list[Text]:
    stored = _transcript_of(store, agent)
    counts = ["unreadable", "-"]
    if stored is not None:
        counts = [f"{len(stored.turns):,}", f"{stored.tokens:,}"]
    models = " ".join(name[:SHOWN_FINGERPRINT] for name in sorted(agent.kv_bytes)) or "none"
    size = agent.ledger_bytes + sum(agent.kv_bytes.values())
    style = "red" if agent.problem else ""
    cells = [
        printable(agent.agent_id),
        models,
        *counts,
        decimal(size),
        decimal(agent.shared_bytes),
        _moment(agent.last_used),
    ]
    return [Text(cell, style=style) for cell in cells]


def _holds_agents(root: Path) -> bool:
    return (root / "agents").is_dir()


@contextmanager
def opened(path: Path | None) -> Iterator[Store]:
    """The store, locked while it is used. Raises InvalidConfig where there is none, and where
    another process has it, with what shows it then.

    Looking must not make a store: opening one would.
    """
    root = expanded(path or default_store())
    if not _holds_agents(root):
        raise InvalidConfig(f"no agents are stored in {root}: name a store with --store")
    try:
        store = Store(root, max_disk=None, encryption_key=stored_key())
    except StoreLocked as error:
        raise InvalidConfig(
            f"{error}; while it runs, `kvactors top --store {root}` shows what it does, and of a "
            "server the page and GET /agents do"
        ) from error
    try:
        yield store
    finally:
        store.close()
