"""Replication off: the bug that every test of a loss should see."""

from typing import Any

from seeded import bug

from kvactors.actors.cluster.protocol.node.copier import Copier, Peer

__all__ = ["the_replica_gets_nothing"]


@bug(Copier, "catch_up")
def the_replica_gets_nothing(true: Any) -> Any:
    async def catch_up(self: Copier, peer: Peer) -> None:
        return None

    return catch_up
