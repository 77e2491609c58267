"""Who may send messages from a node: agents that are its own, and were when they said them."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from kvactors.actors.cluster.protocol.errors import (
    AgentMoving,
    LeaseLost,
    NotOwner,
    for_another_time,
)
from kvactors.actors.cluster.protocol.locks import Locks
from kvactors.actors.cluster.protocol.node.owner import Held, Owner

__all__ = ["Speaking"]


class Speaking:
    """Of agents of `owner`. With an agent's lock of `locks`, `give_up` ends one that is another
    node's by now."""

    def __init__(
        self, owner: Owner, locks: Locks, give_up: Callable[[str], Awaitable[None]]
    ) -> None:
        self._owner, self._locks, self._give_up = owner, locks, give_up
        self._claiming: dict[str, asyncio.Task[None]] = {}

    def permit(self, agent: str | None, lives: Callable[[], bool]) -> Callable[[], bool]:
        """For what `agent` says now: a look whether it may leave just now, or never will. `lives`
        says whether the agent is in memory still as it was. The look raises LeaseLost, and
        AgentMoving while nobody knows whose it is."""
        held = self._held(agent)

        def may() -> bool:
            nonlocal held
            self._owner.check()
            # What an owner has said under its lease it has said, whoever owns the agent since; but
            # behind the end of that others may have said more.
            if agent is not None and (held is None or held.lease is not self._owner.lease):
                if not lives():
                    return False
                if (held := self._owner.current(agent)) is None:
                    self._claim(agent)
                    raise AgentMoving(agent=agent)
            return True

        return may

    def _held(self, agent: str | None) -> Held | None:
        with suppress(LeaseLost):
            return None if agent is None else self._owner.current(agent)
        return None

    def _claim(self, agent: str) -> None:
        if agent not in self._claiming:
            self._claiming[agent] = task = asyncio.create_task(self._settle(agent))
            task.add_done_callback(lambda _: self._claiming.pop(agent))

    async def _settle(self, agent: str) -> None:
        """It is this node's, or in memory no more. What cannot be known yet is asked again."""
        with for_another_time():
            async with self._locks.of(agent):
                try:
                    await self._owner.own(agent)
                except NotOwner:
                    await self._give_up(agent)
