"""A node as owner: what it may answer for, and when a turn is durable."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from kvactors.actors.cluster.protocol.errors import (
    HostFailed,
    LeaseLost,
    NotOwner,
    StaleEpoch,
    Unreachable,
)
from kvactors.actors.cluster.protocol.interfaces import Clock, Host, Transport
from kvactors.actors.cluster.protocol.node.copier import Copier, Peer
from kvactors.actors.cluster.protocol.node.lease import Lease
from kvactors.actors.cluster.protocol.node.notes import Notes
from kvactors.actors.cluster.protocol.records import FORK, Place, Settings
from kvactors.core.errors import EngineDied

__all__ = ["Held", "Owner"]


@dataclass(slots=True)
class Held:
    """An agent that is this node's, while the lease lasts under which it was claimed."""

    place: Place
    lease: Lease
    peer: Peer | None
    away_until: float = 0.0
    """Nobody could be brought up to date: until then it is not tried again."""
    whole: bool = True
    """Its ledger here has what it begins with; False: a fork's may not, yet."""
    since: int = field(init=False)
    """The epoch of the claim."""

    def __post_init__(self) -> None:
        self.since = self.place.epoch


class Owner:
    """What the node `name` claims from the directory, through `transport`, and notes in `notes`;
    its agents are those of `host`, its leases and replicas as `settings` say, by its own `clock`;
    `end` takes one out of memory.

    All but `check` and `current` with the agent's lock held.
    """

    def __init__(
        self,
        name: str,
        transport: Transport,
        clock: Clock,
        host: Host,
        notes: Notes,
        settings: Settings,
        *,
        end: Callable[[str], Awaitable[None]],
    ) -> None:
        self._name, self._transport, self._clock, self._end = name, transport, clock, end
        self._host, self._notes, self._settings = host, notes, settings
        self.copier = Copier(transport, host, settings)
        self.lease: Lease | None = None
        self._held: dict[str, Held] = {}

    def begin(self, lease: Lease) -> None:
        """A new incarnation: nothing is this node's until it is claimed."""
        self._held.clear()
        self.lease = lease

    def check(self) -> None:
        """Raises LeaseLost: also where the engine died, as this node is about to leave."""
        if self.lease is None:
            raise LeaseLost(node=self._name)
        self.lease.check()
        try:
            self._host.check()
        except EngineDied as error:
            raise LeaseLost(node=self._name) from error

    def current(self, agent: str) -> Held | None:
        """What is held of it, if the lease lasts. Raises LeaseLost."""
        self.check()
        held = self._held.get(agent)
        # A name that was under way when the last lease ended may have come back since.
        return held if held is not None and held.lease is self.lease else None

    def drop(self, agent: str) -> None:
        """It is this node's no more, or nobody knows."""
        self._held.pop(agent, None)

    async def own(self, agent: str) -> Held:
        """It is this node's, and no lower epoch is heeded here. Raises NotOwner, LeaseLost."""
        if (held := self.current(agent)) is None:
            held = await self._claim(agent)
        return held

    async def _claim(self, agent: str) -> Held:
        lease = self.lease
        assert lease is not None
        record = {"agent": agent, "node": self._name, "incarnation": lease.incarnation}
        place = Place.from_record(await self._ask("claim", record))
        if 0 < self._notes.promised(agent) < place.born:
            # Another agent of this name, which was forgotten; it may be in memory still.
            await self._end(agent)
            await self._host.set_aside(agent, 0)
        await self._notes.promise(agent, place.epoch)
        lease.check()
        if self._notes.promised(agent) > place.epoch:
            raise NotOwner(agent=agent, node=self._name)
        self._held[agent] = held = Held(place, lease, _peer(place), whole=FORK not in place.options)
        return held

    async def commit(self, held: Held) -> bool:
        """Whether all records are durable now: on the replica too, or on a new one."""
        if self._settings.durable == "one":
            return True
        if self._clock.now() < held.away_until:
            return False
        try:
            if held.peer is not None:
                await self.copier.catch_up(held.peer)
                return True
        except (Unreachable, HostFailed):
            pass
        except StaleEpoch as error:
            raise self._over(held) from error
        return await self.replace(held, held.place.replica)

    async def replace(self, held: Held, lost: str | None) -> bool:
        """Make a new replica instead of `lost`: synced first, then named. Whether there is one."""
        agent = held.place.agent
        try:
            offer = await self._ask("offer", {"agent": agent, "lost": lost})
            if offer["node"] is None:
                return self._away(held)
            await self.copier.catch_up(Peer(agent, offer["node"], held.place.epoch))
        except (Unreachable, HostFailed):
            return self._away(held)
        except StaleEpoch as error:
            raise self._over(held) from error
        await self._name_replica(held, offer["node"])
        return True

    async def _name_replica(self, held: Held, node: str) -> None:
        agent = held.place.agent
        # Whether the name arrived may stay unknown: then it is claimed anew, in another epoch.
        self.drop(agent)
        record = {
            "agent": agent,
            "node": self._name,
            "incarnation": held.lease.incarnation,
            "epoch": held.place.epoch,
            "replica": node,
        }
        place = Place.from_record(await self._ask("name", record))
        await self._notes.promise(agent, place.epoch)
        held.place, held.peer = place, _peer(place)
        assert held.peer is not None
        await self.copier.catch_up(held.peer)
        self._held[agent] = held

    def _away(self, held: Held) -> bool:
        held.away_until = self._clock.now() + self._settings.lease / 4
        return False

    def _over(self, held: Held) -> NotOwner:
        self.drop(held.place.agent)
        return NotOwner(agent=held.place.agent, node=self._name)

    async def _ask(self, method: str, record: dict[str, object]) -> dict[str, Any]:
        answer = await self._transport.call("directory", method, record, within=self._settings.call)
        return dict(answer)


def _peer(place: Place) -> Peer | None:
    return Peer(place.agent, place.replica, place.epoch) if place.replica else None
