"""For how long a node may answer without having heard of the directory."""

from kvactors.actors.cluster.protocol.errors import LeaseLost
from kvactors.actors.cluster.protocol.interfaces import Clock
from kvactors.actors.cluster.protocol.records import Settings

__all__ = ["Lease"]


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
