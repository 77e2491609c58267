"""For how long a node may answer without having heard of the directory, and how it is heard of."""

from collections.abc import Callable
from contextlib import suppress

from kvactors.actors.cluster.protocol.errors import (
    ClusterError,
    Fenced,
    LeaseLost,
    OtherDisk,
    OtherModel,
    UnknownNode,
)
from kvactors.actors.cluster.protocol.interfaces import Clock, Host, Record, Transport
from kvactors.actors.cluster.protocol.node.notes import Notes
from kvactors.actors.cluster.protocol.records import Settings

__all__ = ["Lease", "Membership"]


class Lease:
    """Of one incarnation of a node. It counts from before the renewal was sent, on the node's own
    clock, and ends sooner, by the `settings`, as much as that clock may be slow."""

    def __init__(self, node: str, incarnation: int, clock: Clock, settings: Settings) -> None:
        self.node, self.incarnation = node, incarnation
        self._clock = clock
        self._seconds = settings.lease * (1 - settings.skew)
        self._until = clock.now()
        self.over = False

    def renewed(self, sent: float) -> None:
        """The directory has answered to what was sent then."""
        self._until = max(self._until, sent + self._seconds)

    def check(self) -> None:
        """Raises LeaseLost: the agents may be others' by now."""
        if self.over or self._clock.now() >= self._until:
            raise LeaseLost(node=self.node)


class Membership:
    """Of the node `name` in its cluster: it joins through `transport`, says how `host` is loaded,
    and leaves. `clock` and `settings` are those of its leases; `notes` have its incarnation;
    `joined` gets the lease of each."""

    def __init__(
        self,
        name: str,
        transport: Transport,
        clock: Clock,
        host: Host,
        notes: Notes,
        *,
        settings: Settings,
        joined: Callable[[Lease], object],
    ) -> None:
        self._name, self._transport, self._clock = name, transport, clock
        self._host, self._notes, self._settings = host, notes, settings
        self._joined = joined
        self._lease: Lease | None = None

    async def begin(self) -> None:
        """Join, if the directory answers. Raises OtherDisk and OtherModel: it never will let this
        node in."""
        try:
            await self._join()
        except (OtherDisk, OtherModel):
            raise
        except (ClusterError, OSError):
            return

    async def beat(self) -> None:
        """Renew the lease, or join anew. Raises ClusterError, OSError, and EngineDied: whose engine
        is dead keeps no agents from their replicas."""
        self._host.check()
        if self._lease is None or self._lease.over:
            await self._join()
        lease = self._lease
        assert lease is not None
        sent = self._clock.now()
        load = self._host.load()
        record = {
            "node": self._name,
            "incarnation": lease.incarnation,
            "load": {"bytes": load["bytes"], "waiting": load["waiting"]},
            "tokenizer": self._tokenizer(),
        }
        try:
            await self._directory("renew", record)
            lease.renewed(sent)
        except (Fenced, UnknownNode):
            lease.over = True
            raise

    async def leave(self) -> None:
        """Own nothing any more, and say so."""
        if (lease := self._lease) is not None:
            lease.over = True
            with suppress(ClusterError):
                record = {"node": self._name, "incarnation": lease.incarnation}
                await self._directory("leave", record)

    async def _join(self) -> None:
        """A new incarnation; what was claimed under the last is let go of first."""
        await self._notes.incarnate(self._notes.incarnation)
        while True:
            notes = self._notes
            record = {
                "node": self._name,
                "incarnation": notes.incarnation,
                "disk": notes.disk,
                "tokenizer": self._tokenizer(),
            }
            lease = Lease(self._name, notes.incarnation, self._clock, self._settings)
            sent = self._clock.now()
            try:
                await self._directory("join", record)
            except Fenced as error:
                await self._notes.incarnate(error.fields["held"])
                continue
            lease.renewed(sent)
            self._lease = lease
            self._joined(lease)
            return

    def _tokenizer(self) -> str:
        """Which one the host's model has, if it has one."""
        return str(self._host.load().get("model", {}).get("tokenizer", ""))

    async def _directory(self, method: str, record: Record) -> None:
        await self._transport.call("directory", method, record, within=self._settings.call)
