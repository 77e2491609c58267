"""One process as a node of a cluster: an AgentSystem over its store, and the protocol's node over
that."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvactors.actors.cluster.host.host import SystemHost
from kvactors.actors.cluster.machine.clock import MonotonicClock
from kvactors.actors.cluster.machine.direct import Answers, DirectTransport, NearTransport
from kvactors.actors.cluster.machine.journal import FileJournal
from kvactors.actors.cluster.machine.link import PATIENCE, Link
from kvactors.actors.cluster.machine.loop import OtherLoop
from kvactors.actors.cluster.machine.sealed_host import SealedHost
from kvactors.actors.cluster.machine.seals import Seals, key_name
from kvactors.actors.cluster.member.backups import StoreBackups
from kvactors.actors.cluster.member.behaviours import NodeBehaviours
from kvactors.actors.cluster.member.circles import Circles
from kvactors.actors.cluster.protocol.interfaces import Record, Transport
from kvactors.actors.cluster.protocol.node.server import Node
from kvactors.actors.cluster.protocol.outbox import Permit, anybody
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.actors.system.system import AgentSystem
from kvactors.core.errors import InvalidConfig
from kvactors.persistence.files.encryption import EncryptionKey
from kvactors.persistence.files.key_file import read_key

__all__ = ["FOLDER", "Member", "MemberOptions", "check_key", "open_member"]

FOLDER = "cluster"
"""Within a store: the journals of the node, and of the directory where it is there."""
OWN = 4
"""Leases for which a behaviour's turn waits for its node to have one again."""


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """What a node is made of: its `name` in the cluster, a `store` of its own, its `model`, further
    parameters of AgentSystem (`engine`), and the file with the key of the store. Plain: it passes
    through Ray, which the key itself does not."""

    name: str
    store: str
    model: str = "default"
    engine: dict[str, Any] = field(default_factory=dict)
    key_file: str | None = None

    @property
    def key(self) -> bytes | None:
        """That in the file. Raises InvalidConfig, OSError."""
        return (
            None if self.key_file is None else read_key(Path(self.key_file), "the key of this node")
        )


class Member:
    """A `node` that answers, the `system` under it, its `behaviours`, and the `circles` in which
    they wait. On its loop."""

    def __init__(
        self, node: Node, system: AgentSystem, behaviours: NodeBehaviours, circles: Circles
    ) -> None:
        self.node = node
        self._system, self._behaviours = system, behaviours
        self._looking = asyncio.get_running_loop().create_task(circles.run())

    async def close(self) -> None:
        """End what runs, and write what is not written."""
        self._looking.cancel()
        await self._behaviours.close()
        await self._system.parts.stop_async(cancel=False)


async def open_member(
    options: MemberOptions,
    settings: Settings,
    transport: Transport,
    key: EncryptionKey | None = None,
) -> Member:
    """A node of `options`, in a cluster of these `settings`, that reaches others by `transport`.
    `key`: of its store; None: the one in the file of `options`. On the loop that it will run on.
    Raises InvalidConfig for another key than the cluster's, and what AgentSystem raises."""
    key = key or options.key
    check_key(key, settings)
    system = AgentSystem(options.model, options.store, encryption_key=key, **options.engine)
    await system.parts.start_async()
    try:
        return _over(system, options, settings, transport, key)
    except BaseException:
        await system.parts.stop_async(cancel=True)
        raise


def _over(
    system: AgentSystem,
    options: MemberOptions,
    settings: Settings,
    transport: Transport,
    key: EncryptionKey | None,
) -> Member:
    """The node of these `options`, `settings`, `transport` and `key` over a `system` that runs."""
    folder = Path(options.store) / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    journal = FileJournal(folder / "node.journal", options.name)
    name, seals, doors = options.name, None if key is None else Seals(key), _Doors(options.name)
    own = doors.link(settings, DirectTransport(doors.own), OWN * settings.lease, key)
    near = NearTransport(doors.near, transport)
    link = doors.link(settings, near, PATIENCE, key)
    behaviours = NodeBehaviours(system, own, link, seals)
    host = SystemHost(system, behaviours)
    if seals is not None:
        host = SealedHost(system, seals, behaviours)
    clock = MonotonicClock()
    backups = StoreBackups(system.parts.lifecycle, Path(options.store))
    node = Node(
        name,
        transport,
        clock,
        journal,
        host,
        settings=settings,
        behaviours=behaviours,
        backups=backups,
    )
    doors.open(node)
    circles = Circles(system.parts.lifecycle.waits, link.client, near, settings)
    return Member(node, system, behaviours, circles)


class _Doors:
    """How behaviours reach the node that they run on, which is called `name`: as the owner of every
    agent (`own`), or as itself, without a network between (`near`). On its loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.own: dict[str, Answers] = {"directory": self}
        self.near: dict[str, Answers] = {}
        self._permit: Permit = anybody

    def link(
        self, settings: Settings, transport: Transport, seconds: float, key: EncryptionKey | None
    ) -> Link:
        """By `transport` to a cluster of these `settings`, whose nodes have `key`; calls are tried
        for `seconds`. Nothing is sent for an agent that is not this node's."""
        loop = OtherLoop(asyncio.get_running_loop())

        def permit(sender: str | None, lives: Callable[[], bool]) -> Callable[[], bool]:
            return self._permit(sender, lives)

        return Link(loop, transport, settings, seconds, key, permit)

    def open(self, node: Node) -> None:
        """The node is there."""
        self.own[self._name] = self.near[self._name] = node
        self._permit = node.speaking.permit

    async def handle(self, method: str, record: Record) -> Record:
        """Where any agent lives, whatever the `method` and the `record`: it refuses there what is
        not its own."""
        return {"node": self._name, "epoch": 0}


def check_key(key: EncryptionKey | None, settings: Settings) -> None:
    """Raise InvalidConfig unless `key` is the one of the cluster of these `settings`."""
    if key_name(key) != settings.key:
        raise InvalidConfig(
            "all nodes of a cluster have the same key, or none, and this one has "
            f"{'another' if key and settings.key else 'one' if key else 'none'}: see to "
            "$KVACTORS_KEY_FILE on each"
        )
