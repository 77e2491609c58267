"""How an agent leaves its owner: prepared while it is served, then let go of."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress

from kvactors.actors.cluster.protocol.errors import StaleEpoch, Unreachable
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.locks import Locks
from kvactors.actors.cluster.protocol.node.copier import Peer
from kvactors.actors.cluster.protocol.node.notes import Notes
from kvactors.actors.cluster.protocol.node.owner import Owner

__all__ = ["Leaving"]


class Leaving:
    """Agents of `owner`, whose copies it sends; epochs are promised in `notes`. `locks` are the
    node's; with an agent's lock held `give_up` ends it here. While `shut` lasts nothing comes for
    its behaviour."""

    def __init__(
        self,
        owner: Owner,
        notes: Notes,
        locks: Locks,
        give_up: Callable[[str], Awaitable[None]],
        shut: Callable[[str], AbstractAsyncContextManager[None]],
    ) -> None:
        self._owner, self._notes, self._locks, self._give_up = owner, notes, locks, give_up
        self._shut = shut

    async def prepare(self, record: Record) -> Record:
        """Bring `target` what there is of an agent that is claimed here, which goes on meanwhile:
        without its lock. In this epoch its ledger only grows, so that what is sent stays a
        beginning of it. One that nobody has claimed stands still: `release` brings all of it."""
        if (held := self._owner.current(record["agent"])) is not None:
            peer = Peer(record["agent"], record["target"], held.place.epoch)
            await self._owner.copier.catch_up(peer)
            await self._owner.copier.send_pieces(peer)
        return {}

    async def release(self, record: Record) -> Record:
        """Let go of an agent, and bring `target` what is new. What it is asked here from now on has
        to be claimed anew, and that is in another epoch than the one in which it moves."""
        agent, epoch = record["agent"], record["epoch"]
        async with self._shut(agent), self._locks.of(agent):
            await self._let_go(agent, epoch)
            peer = Peer(agent, record["target"], epoch)
            await self._owner.copier.catch_up(peer)
            # Only a cache: what does not come in time is prefilled there.
            with suppress(Unreachable):
                await self._owner.copier.send_pieces(peer, hurried=True)
        return {}

    async def retire(self, record: Record) -> Record:
        """Let go of an agent that shall be forgotten."""
        async with self._locks.of(record["agent"]):
            await self._let_go(record["agent"], record["epoch"])
        return {}

    async def _let_go(self, agent: str, epoch: int) -> None:
        if (held := self._notes.promised(agent)) > epoch:
            raise StaleEpoch(agent=agent, epoch=epoch, held=held)
        await self._notes.promise(agent, epoch)
        await self._give_up(agent)
