"""`kvactors node`: this machine as a part of a cluster, until a signal."""

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import ray

from kvactors.actors.cluster.machine.seals import key_name
from kvactors.actors.cluster.member.member import FOLDER, MemberOptions, check_key
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.actors.cluster.ray.boot import read_settings, start_directory, start_node
from kvactors.actors.cluster.ray.errors import RayletFailed
from kvactors.actors.cluster.ray.raylet import Raylet, Started
from kvactors.actors.cluster.ray.session import check_reachable, connect
from kvactors.actors.cluster.ray.token import require_token, token_file

HEAD_STARTS = 60.0
"""Seconds for which a head that only begins is waited for."""

__all__ = ["NodeCommand", "run_node"]


@dataclass(frozen=True, slots=True)
class NodeCommand:
    """What `kvactors node` was told: the `member` that it becomes, where others reach this machine
    (`host`), and either the `port` and `settings` of a new cluster or whom it `joins`."""

    member: MemberOptions
    host: str
    port: int
    joins: str | None
    settings: Settings


def run_node(command: NodeCommand, until: Callable[[], bool], say: Callable[[str], None]) -> None:
    """Start Ray's processes and the node of `command`, `say` that they run, and end them when
    `until` is so. Raises InvalidConfig, RayletFailed, ClusterUnreachable, WrongToken, ClusterError.
    """
    if require_token(make=command.joins is None):
        say(f"A token was made: copy {token_file()} to the same place on the other machines.")
    # A path of Ray's sockets has about a hundred characters at most.
    folder = Path(tempfile.mkdtemp(prefix="kvactors-ray-", dir="/tmp"))
    try:
        _run(command, folder, until, say)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(
    command: NodeCommand, folder: Path, until: Callable[[], bool], say: Callable[[str], None]
) -> None:
    name, address = command.member.name, command.joins or f"{command.host}:{command.port}"
    port = None if command.joins else command.port
    if command.joins:
        check_reachable(command.joins)
    with Raylet(Started(name, command.host, folder, port, command.joins)) as raylet:
        connect(address)
        try:
            # Kept: Ray ends an actor that nobody refers to.
            directory = None
            if command.joins is None:
                folder = Path(command.member.store) / FOLDER
                settings = replace(command.settings, key=key_name(command.member.key))
                directory = start_directory(folder, settings)
            settings = read_settings(HEAD_STARTS)
            check_key(command.member.key, settings)
            node = start_node(command.member, settings)
            say(f"{name} is a node of the cluster at {address}.")
            while not until():
                if not raylet.running:
                    raise RayletFailed(f"Ray's processes on this machine have ended: {raylet.log}")
                time.sleep(0.2)
            ray.get(node.leave.remote())
            del directory
        finally:
            ray.shutdown()
