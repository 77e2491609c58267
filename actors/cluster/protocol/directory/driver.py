"""Moves under way: each is driven by a task of its own, from the moment at which it is written."""

import asyncio
import logging
from functools import partial

from kvactors.actors.cluster.protocol.directory.moves import Moves
from kvactors.actors.cluster.protocol.directory.places import Places
from kvactors.actors.cluster.protocol.directory.registry import Registry
from kvactors.actors.cluster.protocol.errors import ClusterError

__all__ = ["Driver"]

logger = logging.getLogger(__name__)

# A move that failed so often is given up.
TRIES = 8


class Driver:
    """Brings the agents of `registry` that move to their targets, by `places` and `moves`, up to
    `at_once` at a time."""

    def __init__(self, registry: Registry, places: Places, moves: Moves, at_once: int) -> None:
        self._registry, self._places, self._moves = registry, places, moves
        self._gate = asyncio.Semaphore(at_once)
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, int] = {}
        self._bug: BaseException | None = None

    async def round(self) -> None:
        """Try those again that nobody drives: after a restart, and where a try has failed."""
        if self._bug is not None:
            raise self._bug
        # Who was forgotten meanwhile is another one when it moves again.
        for agent in self._failed.keys() - self._registry.moves.keys():
            del self._failed[agent]
        for agent in list(self._registry.moves):
            self.begin(agent)

    def begin(self, agent: str) -> None:
        """A move of it is written: drive it, unless somebody does."""
        if agent not in self._under_way:
            task = asyncio.create_task(self._try(agent))
            self._under_way[agent] = task
            task.add_done_callback(partial(self._ended, agent))

    def _ended(self, agent: str, task: asyncio.Task[None]) -> None:
        del self._under_way[agent]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._bug = error

    async def _try(self, agent: str) -> None:
        """As far as it goes. A crash anywhere leaves the move in the journal: it is tried again."""
        async with self._gate:
            try:
                await self._drive(agent)
                self._failed.pop(agent, None)
            except ClusterError:
                pass

    async def _drive(self, agent: str) -> None:
        if (move := self._registry.moves.get(agent)) is None:
            return
        place = await self._places.settled(agent)
        if place.node == move.target or not self._registry.takes(move.target):
            await self._moves.give_up(agent)
            return
        try:
            await self._moves.bring(place, move)
        except ClusterError as error:
            await self._failed_once(agent, move.target, error)
            raise

    async def _failed_once(self, agent: str, target: str, error: ClusterError) -> None:
        self._failed[agent] = self._failed.get(agent, 0) + 1
        if self._failed[agent] >= TRIES:
            del self._failed[agent]
            logger.warning("%r could not be brought to %s: %s", agent, target, error)
            await self._moves.give_up(agent)
