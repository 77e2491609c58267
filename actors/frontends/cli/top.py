"""`kvactors top`: the screen of a running system, read from its socket."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kvactors.actors.frontends.console.console import out, printable
from kvactors.actors.system.observe.monitor import socket_path
from kvactors.actors.system.system import default_store
from kvactors.core.errors import SystemStopped
from kvactors.persistence.errors import StorageError, StoreLocked
from kvactors.persistence.files.atomic import Files
from kvactors.persistence.files.home import expanded
from kvactors.persistence.files.lock import LOCK_NAME, StoreLock

__all__ = ["run_top"]

# Seconds without a word after which a system is taken for hung.
PATIENCE = 10.0
LONGEST_LINE = 1 << 20
SHOWN_TURNS = 24
BAR = 12
# Sources of drafts, as they are shown.
SOURCES = {"own": "own words", "others": "replies of others", "model": "draft model"}
STATES = {"ok": "green", "rebuilding": "yellow", "stalled": "red", "dead": "red"}
PHASES = {"decode": "green", "prefill": "blue", "restoring": "magenta", "waiting": "dim"}

Snapshot = dict[str, Any]


def run_top(store: Path | None, *, once: bool) -> None:
    """Show the system that has this store open, until it ends or Ctrl-C; with `once` one screen.

    Raises SystemStopped if there is none.
    """
    root = expanded(store or default_store())
    with closing(_connect(root)) as connection:
        snapshots = _snapshots(connection, root)
        before = next(snapshots, None)
        if before is None:
            raise _nobody(root)
        if once:
            out.print(_screen(next(snapshots, before), before, root))
            return
        with Live(_screen(before, before, root), console=out, screen=out.is_terminal) as live:
            for snapshot in snapshots:
                live.update(_screen(snapshot, before, root), refresh=True)
                before = snapshot
    out.print("The system has ended.")


# -- the connection --------------------------------------------------------------------


def _connect(root: Path) -> socket.socket:
    if not hasattr(socket, "AF_UNIX"):
        raise _nobody(root)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE)
    try:
        connection.connect(str(socket_path(root)))
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        connection.close()
        _look_who_has_it(root)
        raise _nobody(root) from None
    except BaseException:
        connection.close()
        raise
    return connection


def _look_who_has_it(root: Path) -> None:
    """Raise SystemStopped if a process has the store, and no socket yet. That of a process that was
    killed is removed: one that runs holds the lock."""
    if not (root / LOCK_NAME).exists():
        return  # Looking makes none.
    try:
        lock = StoreLock(root, Files())
        socket_path(root).unlink(missing_ok=True)
        lock.release()
    except StoreLocked as error:
        holder = f"process {error.pid}" if error.pid else "another process"
        raise SystemStopped(
            f"{holder} has the store {root} open, and nothing to show yet: it is loading a model, "
            "or is a command at work"
        ) from None
    except (StorageError, OSError):
        return


def _snapshots(connection: socket.socket, root: Path) -> Iterator[Snapshot]:
    """What the system says, until it ends."""
    with connection.makefile("rb") as lines:
        try:
            while (line := lines.readline(LONGEST_LINE)).endswith(b"\n"):
                yield json.loads(line)
        except TimeoutError:
            raise SystemStopped(
                f"the system with the store {root} has not answered for {PATIENCE:g} s"
            ) from None
        except ConnectionResetError:
            return


def _nobody(root: Path) -> SystemStopped:
    return SystemStopped(f"no system is running with the store {root}")


# -- the screen ------------------------------------------------------------------------


def _screen(now: Snapshot, before: Snapshot, root: Path) -> RenderableType:
    head, stats = _head(now, root), now["stats"]
    if stats is None:
        return Group(head, Text("\nThe engine is busy, or gone: no figures.", style="yellow"))
    sides = Table.grid(padding=(0, 5))
    sides.add_row(_tiers(stats), _work(now, before))
    return Group(head, Text(), sides, Text(), _turns(now["turns"]))


def _head(now: Snapshot, root: Path) -> Text:
    health = now["health"]
    text = Text("kvactors top", style="bold")
    text.append(f"  {printable(now['model'])}, process {now['pid']}, {root}  ", style="default")
    text.append(health["state"], style=STATES.get(health["state"], ""))
    if health["storage"] != "ok":
        text.append("  the disk is failing", style="red")
    for error in filter(None, (health["storage_error"], health["error"])):
        text.append(f"\n{printable(error)}", style="red")
    return text


def _tiers(stats: dict[str, int]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("agents")
    for name in ("", "tokens", "bytes"):
        table.add_column(name, justify="right")
    for tier in ("active", "hot", "warm", "cold"):
        tokens, size = stats.get(f"{tier}_tokens"), stats.get(f"{tier}_bytes")
        table.add_row(
            tier,
            f"{stats.get(f'{tier}_agents', 0):,}",
            "" if tokens is None else f"{tokens:,}",
            "" if size is None else decimal(size),
        )
    table.add_row("on disk", "", "", decimal(stats.get("disk_bytes", 0)))
    return table


def _work(now: Snapshot, before: Snapshot) -> Table:
    stats, table = now["stats"], Table.grid(padding=(0, 2))
    used = stats["used_bytes"]
    bar = Table.grid(padding=(0, 1))
    size = f"{decimal(used)} of {decimal(stats['budget_bytes'])}"
    bar.add_row(_bar(used, stats["budget_bytes"], "cyan"), size)
    table.add_row("generated", f"{_rate('generated_tokens', now, before)} tokens/s")
    right, drafted = stats["accepted_tokens"], stats["drafted_tokens"]
    said = f"{right:,} of {drafted:,} tokens right" if drafted else "none yet"
    table.add_row("drafts", said)
    for source, name in SOURCES.items():
        right, drafted = stats[f"{source}_accepted_tokens"], stats[f"{source}_drafted_tokens"]
        if drafted:
            table.add_row("", f"{name}: {right:,} of {drafted:,}")
    table.add_row("prefilled", f"{_rate('prefilled_tokens', now, before)} tokens/s")
    in_engine = stats["waiting"] + stats["active_agents"]
    mailboxes = max(0, now["outstanding_turns"] - in_engine)
    queues = f"{mailboxes:,} in mailboxes, {stats['waiting']:,} for room"
    table.add_row("waiting", queues)
    table.add_row("to write", decimal(now["health"]["unsaved_bytes"]))
    table.add_row("memory", bar)
    events = f"{stats['evictions']:,} evictions, {stats['preemptions']:,} preemptions"
    table.add_row("so far", events)
    return table


def _rate(name: str, now: Snapshot, before: Snapshot) -> str:
    """Per second; nothing where it is not known."""
    seconds = now["at"] - before["at"]
    if before["stats"] is None or seconds <= 0:
        return "-"
    # The counts begin anew with another model.
    return f"{max(0, now['stats'][name] - before['stats'][name]) / seconds:,.1f}"


def _turns(turns: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("turns", "", "", "tokens"):
        table.add_column(name, justify="right" if name == "tokens" else "left", no_wrap=True)
    for turn in turns[:SHOWN_TURNS]:
        style, total = PHASES[turn["phase"]], turn["total"]
        table.add_row(
            Text(printable(turn["agent_id"]), overflow="ellipsis"),
            Text(turn["phase"], style=style),
            _bar(turn["done"], total, style),
            f"{turn['done']:,} of {total:,}",
        )
    if len(turns) > SHOWN_TURNS:
        table.add_row(f"and {len(turns) - SHOWN_TURNS} more")
    return table


def _bar(done: int, total: int, style: str) -> Text:
    full = round(BAR * min(1.0, done / max(1, total)))
    return Text("█" * full, style=style).append("░" * (BAR - full), style="dim")
