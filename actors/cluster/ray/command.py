"""`kvactors node`: this machine as a part of a cluster, until a signal."""

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from kvactors.actors.cluster.machine.seals import key_name
from kvactors.actors.cluster.member.member import FOLDER, MemberOptions, check_key
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.actors.cluster.ray.boot import (
    LOOKS,
    answers,
    came,
    read_settings,
    start_directory,
    start_node,
)
from kvactors.actors.cluster.ray.drained import ANSWERS, drained
from kvactors.actors.cluster.ray.errors import ClusterUnreachable, RayletFailed
from kvactors.actors.cluster.ray.raylet import Raylet, Started
from kvactors.actors.cluster.ray.session import check_reachable, connect, open_link
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


def run_node(command: NodeCommand, told: Callable[[], int], say: Callable[[str], None]) -> None:
    """Start Ray's processes and the node of `command`, `say` that they run, and end them when
    `told` to: once, and its agents go to other nodes first; twice, and at once. Raises
    InvalidConfig, RayletFailed, ClusterUnreachable, WrongToken, NameTaken, ClusterError.
    """
    if require_token(make=command.joins is None):
        say(f"A token was made: copy {token_file()} to the same place on the other machines.")
    # A path of Ray's sockets has about a hundred characters at most.
    folder = Path(tempfile.mkdtemp(prefix="kvactors-ray-", dir="/tmp"))
    try:
        _run(command, folder, told, say)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(
    command: NodeCommand, folder: Path, told: Callable[[], int], say: Callable[[str], None]
) -> None:
    name, address = command.member.name, command.joins or f"{command.host}:{command.port}"
    port = None if command.joins else command.port
    if command.joins:
        check_reachable(command.joins)
    with Raylet(Started(name, command.host, folder, port, command.joins)) as raylet:
        with _own_signals():
            connect(address)
        try:
            # Kept: Ray ends an actor that nobody refers to.
            directory = None
            if command.joins is None:
                folder = Path(command.member.store) / FOLDER
                settings = replace(command.settings, key=key_name(command.member.key))
                directory = start_directory(folder, settings)
                if not answers(directory, told):
                    return
            settings = read_settings(HEAD_STARTS)
            check_key(command.member.key, settings)
            node = start_node(command.member, settings)
            if not answers(node, told):
                return
            say(f"{name} is a node of the cluster at {address}.")
            while not told():
                _refuse_ended(raylet)
                time.sleep(LOOKS)
            if directory is None:
                _leave(name, address, node, told, say)
            else:
                # Without it there is no directory, so that nobody could take its agents.
                _end(node, told)
            del directory
        except RayError as error:
            raise RayletFailed(
                f"Ray failed on this machine: {' '.join(str(error).split())} {raylet.said}"
            ) from error
        finally:
            ray.shutdown()


def _leave(
    name: str, address: str, node: Any, told: Callable[[], int], say: Callable[[str], None]
) -> None:
    say(f"{name} leaves: others take its agents. Once more, and it leaves at once.")
    try:
        link, leave = open_link(address, ANSWERS)
    except ClusterUnreachable:
        # The head has ended, too.
        _end(node, told)
        return
    try:
        with drained(link, name, lambda: told() > 1):
            _end(node, told)
    finally:
        leave()


def _end(node: Any, told: Callable[[], int]) -> None:
    """Let it end what runs and write what is not written; whoever tells twice does not wait."""
    left = node.leave.remote()
    if came(left, lambda: told() > 1):
        ray.get(left)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray ends a process at SIGTERM as it likes: whoever set what that does sets it again."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def _refuse_ended(raylet: Raylet) -> None:
    if not raylet.running:
        raise RayletFailed(f"Ray's processes on this machine have ended: {raylet.said}")
