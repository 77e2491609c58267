"""What `kvactors node` and `kvactors cluster` do."""

import signal
import socket
from pathlib import Path
from typing import Any

from rich.table import Table

from kvactors.actors.cluster.cluster import Cluster, check_durable
from kvactors.actors.frontends.cli.care import show_backup
from kvactors.actors.frontends.console.console import err, out, print_json, printable
from kvactors.actors.frontends.console.key import key_file, stored_key
from kvactors.actors.system.parameters import check_seconds
from kvactors.core.errors import InvalidConfig, InvalidInput
from kvactors.persistence.files.home import expanded

__all__ = ["drain_node", "move_agent", "serve_node", "show_status"]


def serve_node(
    *,
    head: bool,
    join: str | None,
    member: tuple[str | None, Path, str],
    address: tuple[str, int],
    settings: dict[str, Any],
    engine: dict[str, Any],
) -> None:
    """Run a node until a signal: a `head`, or one that joins (`join`). `member`: its name, store
    and model; `address`: where it is reached; `settings` of a new cluster; `engine`: further
    parameters of AgentSystem."""
    if head == (join is not None):
        raise InvalidInput("a node is --head, or it takes --join HOST:PORT of one")
    check_durable(settings["durable"])
    check_seconds("--lease", settings["lease"])
    try:
        from kvactors.actors.cluster.ray.command import NodeCommand, run_node
    except ImportError as error:
        raise InvalidConfig(f"{error.name} is missing: pip install 'kvactors[ray]'") from error
    from kvactors.actors.cluster.member.member import MemberOptions
    from kvactors.actors.cluster.protocol.records import Settings

    name, store, model = member
    stored_key()  # A file that holds none is refused here.
    key = None if (file := key_file()) is None else str(file.absolute())
    options = MemberOptions(
        name or socket.gethostname(), str(expanded(store).absolute()), model, engine, key
    )
    command = NodeCommand(options, *address, join, Settings(**settings, model=model))
    signals = _signals()
    run_node(command, lambda: len(signals), err.print)


def show_status(address: str | None, *, as_json: bool) -> None:
    """The nodes of the cluster at `address`, as a table or `as_json`."""
    with Cluster.connect(address) as cluster:
        stats = cluster.stats()
    if as_json:
        print_json(stats)
        return
    table = Table(title=f"{stats['agents']:,} agents, {stats['moves']:,} moving")
    for name in ("node", "state", "agents", "replicas", "bytes of KV", "turns waiting"):
        table.add_column(name, justify="left" if name in ("node", "state") else "right")
    for name, node in sorted(stats["nodes"].items()):
        counts = [f"{node[key]:,}" for key in ("agents", "replicas")]
        table.add_row(
            printable(name), _state(node), *counts, f"{node['bytes']:,} B", f"{node['waiting']:,}"
        )
    out.print(table)


def drain_node(node: str, address: str | None, *, undo: bool) -> None:
    """Bring all agents of a `node` of the cluster at `address` to others; `undo`: take it back."""
    with Cluster.connect(address) as cluster:
        cluster.drain(node, undo=undo)
    told = "takes agents again" if undo else "has no agents, and gets none"
    err.print(f"{printable(node)} {told}.")


def back_up_cluster(url: str, address: str | None) -> bool:
    """Copy what is not at `url` yet of all agents of the cluster at `address`; whether none had to
    be skipped."""
    with Cluster.connect(address) as cluster:
        return show_backup(cluster.backup(url))


def move_agent(agent: str, to: str | None, address: str | None) -> None:
    """Bring an `agent` of the cluster at `address` to the node `to`."""
    with Cluster.connect(address) as cluster:
        place = cluster.migrate(agent, to)
    err.print(f"{printable(agent)} lives on {printable(place.node)}.")


def _state(node: dict[str, Any]) -> str:
    if not node["alive"]:
        return "away"
    return "drained" if node["draining"] else "alive"


def _signals() -> list[int]:
    """Those to end that have come, as they come."""
    told: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: told.append(number))
    return told
