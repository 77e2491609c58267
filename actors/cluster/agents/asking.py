"""How one agent of a cluster is asked, by one handle: in order, until it is answered or ended. Any
thread; what it does runs on the cluster's loop."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from kvactors.actors.cluster.agents.asked import AskedFuture
from kvactors.actors.cluster.agents.streams import Pieces, Reading, pieces
from kvactors.actors.cluster.host.answers import read_reply, read_rewound
from kvactors.actors.cluster.machine.link import Link
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.reply import Reply, Rewound
from kvactors.core.errors import TurnTimeout

__all__ = ["Asking"]

logger = logging.getLogger("kvactors")

GRACE = 0.5
"""Seconds for which a node's own word that a turn took too long is waited for."""


class Asking:
    """Of `agent_id`, through `link`."""

    def __init__(self, agent_id: str, link: Link) -> None:
        self._agent_id = agent_id
        self._link = link
        self._order = link.order(agent_id)

    def turn(self, request: dict[str, Any]) -> ReplyFuture[Reply]:
        """A future of its reply."""
        return self._link.begin(self._turn(request))

    def rewind(self, request: dict[str, Any]) -> ReplyFuture[Rewound]:
        """A future of its end."""
        return self._link.begin(self._rewound(request))

    def reading(self, request: dict[str, Any]) -> Reading:
        """The same turn, piece by piece."""
        return Reading(self._link, self._pieces(request), lambda: self.cancel(request["id"]))

    def cancel(self, request: str) -> None:
        """End the turn of this id, or see to it that there will be none."""
        self._link.begin(self._link.cancel(self._agent_id, request)).on_done(self.log)

    def cancel_first(self) -> None:
        """End the one that runs, or waits first."""
        self._link.begin(self._cancel_first()).on_done(self.log)

    def log(self, done: ReplyFuture[Any]) -> None:
        """How something ended that nobody waits for."""
        if done.error is not None:
            logger.warning("what %r was told failed: %s", self._agent_id, done.error)

    async def _turn(self, request: dict[str, Any]) -> Reply:
        return self.reply(request, await self.given(request))

    async def _rewound(self, request: dict[str, Any]) -> Rewound:
        given = await self.given(request)
        return read_rewound(given["answer"], self._durable(request, given))

    async def given(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the protocol's client has for it, in order. On the loop."""
        with self._link.asking(self._agent_id, request["id"]):
            async with self._turns(request) as end:
                request = end.rest()
                seconds = self._link.patience(request)
                # Where its time is over it is not cancelled, but ended at its node.
                turn = asyncio.ensure_future(
                    self._link.client.turn(self._agent_id, request, seconds)
                )
                try:
                    async with self._ended(end):
                        return await asyncio.shield(turn)
                except asyncio.CancelledError:
                    turn.cancel()
                    raise

    async def items(self, request: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Those of the protocol's client, in order. On the loop."""
        with self._link.asking(self._agent_id, request["id"]):
            async with self._turns(request) as end:
                request = end.rest()
                seconds = self._link.patience(request)
                items = aiter(self._link.client.stream(self._agent_id, request, seconds))
                while True:
                    async with self._ended(end):
                        item = await anext(items, None)
                    if item is None:
                        return
                    yield item

    @asynccontextmanager
    async def _turns(self, request: dict[str, Any]) -> AsyncIterator["_End"]:
        """Meanwhile it is this request's turn: by when it ends. Raises TurnTimeout."""
        end = _End(self._agent_id, request)
        try:
            async with asyncio.timeout_at(end.at):
                await self._order.acquire()
        except TimeoutError as error:
            raise end.late() from error
        try:
            yield end
        finally:
            self._order.release()

    @asynccontextmanager
    async def _ended(self, end: "_End") -> AsyncIterator[None]:
        """Nothing lasts longer than its node needs to say that the time is over: then the request
        is withdrawn. Raises TurnTimeout."""
        limit = asyncio.timeout_at(None if end.at is None else end.at + GRACE)
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            self.cancel(end.request["id"])
            raise end.late() from error

    async def _pieces(self, request: dict[str, Any]) -> Pieces:
        async with aclosing(self.items(request)) as items:
            async for piece in pieces(items, lambda given: self.reply(request, given)):
                yield piece

    async def _cancel_first(self) -> None:
        if (request := await self._link.first(self._agent_id)) is not None:
            await self._link.cancel(self._agent_id, request)

    def reply(self, request: dict[str, Any], given: dict[str, Any]) -> Reply:
        """Whether its KV is on disk is asked when somebody wants to know."""
        link = self._link
        cached = AskedFuture(lambda: link.begin(link.cached(self._agent_id, request["id"])))
        return read_reply(given["answer"], self._durable(request, given), cached)

    def _durable(self, request: dict[str, Any], given: dict[str, Any]) -> ReplyFuture[bool]:
        """Settled at once, or when a second node has it: asked again and again, which also makes
        its owner try."""
        if not given["durable"]:
            return self._link.begin(self._link.durable(self._agent_id, request["id"]))
        durable = ReplyFuture[bool]()
        durable.resolve(True)
        return durable


class _End:
    """By when a `request` of `agent_id`, which begins now, is to be answered. On a loop."""

    def __init__(self, agent_id: str, request: dict[str, Any]) -> None:
        self._agent_id, self.request = agent_id, request
        self._seconds = request.get("timeout")
        now = asyncio.get_running_loop().time()
        self.at: float | None = None if self._seconds is None else now + self._seconds

    def rest(self) -> dict[str, Any]:
        """The request, with what is left of its time. Raises TurnTimeout."""
        if self.at is None:
            return self.request
        left = self.at - asyncio.get_running_loop().time()
        if left <= 0:
            raise self.late()
        return {**self.request, "timeout": left}

    def late(self) -> TurnTimeout:
        """That its time is over."""
        return TurnTimeout(f"the turn of {self._agent_id!r} took longer than {self._seconds:g} s")
