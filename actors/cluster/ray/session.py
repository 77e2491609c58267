"""This process as a client of Ray. One cluster a process: Ray knows no more."""

import socket
from collections.abc import Callable
from typing import Any

import ray
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError, RpcError

from kvactors.actors.cluster.machine.link import Link
from kvactors.actors.cluster.machine.loop import LoopThread
from kvactors.actors.cluster.ray.boot import read_settings
from kvactors.actors.cluster.ray.errors import ClusterUnreachable, WrongToken
from kvactors.actors.cluster.ray.lookup import NAMESPACE
from kvactors.actors.cluster.ray.quirks import as_written
from kvactors.actors.cluster.ray.raylet import LOOPBACK
from kvactors.actors.cluster.ray.token import require_token, token_source
from kvactors.actors.cluster.ray.transport import RayTransport
from kvactors.core.errors import InvalidInput
from kvactors.persistence.files.encryption import EncryptionKey

__all__ = ["check_reachable", "connect", "open_link"]

_open: dict[Link, bool] = {}
"""The links of this process, and whether it was connected to Ray for one of them."""


def check_reachable(address: str) -> None:
    """Whether a cluster at `address` would take this process. Raises InvalidInput, InvalidConfig,
    ClusterUnreachable, WrongToken."""
    host, port = _parse(address)
    require_token(make=False)
    _check_listens(host, port)
    _check_token(f"{host}:{port}")


def connect(address: str) -> None:
    """Let this process call the actors of the cluster at `address`, "host:port". It needs a node of
    that cluster on this machine. Raises as `check_reachable`."""
    if ray.is_initialized():
        _check_same(address)
        return
    check_reachable(address)
    host, port = _parse(address)
    options: dict[str, Any] = {"_node_ip_address": LOOPBACK} if host == LOOPBACK else {}
    with as_written():
        ray.init(
            address=f"{host}:{port}",
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            **options,
        )


def open_link(
    address: str, seconds: float, key: EncryptionKey | None = None
) -> tuple[Link, Callable[[], None]]:
    """What handles need of the cluster at `address`, tried for `seconds`, and what leaves it: the
    last that leaves disconnects from Ray, if it was connected here. `key`: that of its nodes.
    Raises as `connect`, and InvalidConfig for another key."""
    began = not ray.is_initialized()
    connect(address)
    try:
        link = _link(seconds, key)
    except BaseException:
        if began and not _open:
            # Or no other cluster could be tried.
            ray.shutdown()
        raise
    _open[link] = began or any(_open.values())

    def leave() -> None:
        link.close()
        if _open.pop(link, False) and not _open:
            ray.shutdown()

    return link, leave


def _link(seconds: float, key: EncryptionKey | None) -> Link:
    settings, loop = read_settings(seconds), LoopThread("kvactors-cluster")
    try:
        return Link(loop, RayTransport(), settings, seconds, key)
    except BaseException:
        loop.stop()
        raise


def _parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 2**16:
        raise InvalidInput(f'an address is "host:port", not {address!r}')
    return LOOPBACK if host == "localhost" else host, int(port)


def _check_same(address: str) -> None:
    there = ray.get_runtime_context().gcs_address
    if there != ":".join(map(str, _parse(address))):
        raise InvalidInput(f"this process is connected to {there}: one cluster a process")


def _check_listens(host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), 5).close()
    except UnicodeError as error:
        raise InvalidInput(f"no host has the name {host!r}: {error}") from error
    except OSError as error:
        raise ClusterUnreachable(
            f"nobody listens at {host}:{port} ({error.strerror or error}): start a head there with "
            "`kvactors node --head`"
        ) from error


def _check_token(address: str) -> None:
    """Ray itself tries for twenty seconds, and then does not say what was wrong."""
    try:
        GcsClient(address=address)
    except AuthenticationError as error:
        raise WrongToken(
            f"{address} refuses the token of this process (from {token_source()}): take that of "
            "the head"
        ) from error
    except RpcError as error:
        raise ClusterUnreachable(
            f"{address} listens, and does not answer as Ray does: if RAY_USE_TLS is set for the "
            "head it must be for this process too, and the other way round"
        ) from error
