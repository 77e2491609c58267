"""ClusterAgent: the handle of an agent that lives on some node. Its methods may be called from any
thread."""

import logging
from collections.abc import Sequence
from typing import Any, NoReturn, Unpack

from kvactors.actors.agents.handle import TranscriptView
from kvactors.actors.cluster.asked import AskedFuture
from kvactors.actors.cluster.host.answers import read_reply
from kvactors.actors.cluster.machine.link import Link
from kvactors.actors.cluster.requests import checked_ask, checked_observe
from kvactors.actors.cluster.streams import AsyncClusterStream, ClusterStream, Pieces, pieces
from kvactors.actors.cluster.transcripts import read_transcript
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.checks import stays_here
from kvactors.actors.turns.options import AskOptions
from kvactors.actors.turns.reply import Reply
from kvactors.core.schedule.sampling import Sampling

__all__ = ["ClusterAgent"]

logger = logging.getLogger("kvactors")


class ClusterAgent:
    """One agent of a cluster. Made by `Cluster.spawn`; the same id is the same agent, wherever it
    lives. What it is asked by one handle is answered in order."""

    def __init__(self, agent_id: str, link: Link) -> None:
        self.agent_id = agent_id
        self._link = link
        self._order = link.order(agent_id)

    def __repr__(self) -> str:
        return f"<ClusterAgent {self.agent_id!r}>"

    def __reduce__(self) -> NoReturn:
        stays_here(self, "pass its agent_id, and find it there")

    def ask(
        self, prompt: str | Sequence[int] | None = None, **options: Unpack[AskOptions]
    ) -> ReplyFuture[Reply]:
        """Take a turn as `Agent.ask` does, with its options; a pykka Future of its Reply.

        It is taken once, whatever dies on the way: a node, the directory, a message. Without a
        `timeout` a lost owner is waited for as long as `Cluster.connect(patience=...)` says. Raises
        InvalidInput at once; the future raises what `Agent.ask`'s does, and Unanswered.
        """
        return self._ask(checked_ask(prompt, **options))

    def tell(self, prompt: str | Sequence[int], *, sampling: Sampling | None = None) -> None:
        """Take a turn whose reply nobody waits for; it is remembered like any other."""
        self._ask(checked_ask(prompt, sampling=sampling)).on_done(self._log)

    def observe(self, text: str, role: str = "user") -> ReplyFuture[Reply]:
        """Remember something without answering; `role`: any that the chat template has. The future
        resolves when it is remembered, and raises TemplateError."""
        return self._ask(checked_observe(text, role))

    def stream(
        self, prompt: str | Sequence[int] | None = None, **options: Unpack[AskOptions]
    ) -> ClusterStream:
        """Take a turn as `ask` does, with its options, and iterate over its text as it is decoded;
        `.reply` at the end. Who leaves early leaves the turn to its node: it goes on there."""
        return ClusterStream(self._link.loop, self._pieces(checked_ask(prompt, **options)))

    async def ask_async(
        self, prompt: str | Sequence[int] | None = None, **options: Unpack[AskOptions]
    ) -> Reply:
        """`ask` under asyncio, with its options. Cancelling it leaves the turn to its node."""
        return await self.ask(prompt, **options)

    def stream_async(
        self, prompt: str | Sequence[int] | None = None, **options: Unpack[AskOptions]
    ) -> AsyncClusterStream:
        """`stream` under asyncio, with its options."""
        return AsyncClusterStream(self._link.loop, self._pieces(checked_ask(prompt, **options)))

    def transcript(self) -> TranscriptView:
        """What it remembers: finished turns, none missing that anyone was given. Waits for its
        node. Where stores are encrypted it is opened here. Raises InvalidConfig without their key,
        UnknownAgent, Unanswered."""
        link = self._link
        found = link.run(link.client.read(self.agent_id, 0, link.seconds))
        return read_transcript(self.agent_id, found["records"])

    def _ask(self, request: dict[str, Any]) -> ReplyFuture[Reply]:
        return self._link.begin(self._turn(request))

    async def _turn(self, request: dict[str, Any]) -> Reply:
        async with self._order:
            seconds = self._link.patience(request)
            given = await self._link.client.turn(self.agent_id, request, seconds)
        return self._reply(request, given)

    async def _pieces(self, request: dict[str, Any]) -> Pieces:
        async with self._order:
            seconds = self._link.patience(request)
            items = self._link.client.stream(self.agent_id, request, seconds)
            async for piece in pieces(items, lambda given: self._reply(request, given)):
                yield piece

    def _reply(self, request: dict[str, Any], given: dict[str, Any]) -> Reply:
        """Its `durable` is settled at once, or when a second node has it. Whether its KV is on disk
        is asked when somebody wants to know."""
        link, durable = self._link, ReplyFuture[bool]()
        cached = AskedFuture(lambda: link.begin(link.cached(self.agent_id, request["id"])))
        if given["durable"]:
            durable.resolve(True)
        else:
            durable = link.begin(link.durable(self.agent_id, request["id"]))
        return read_reply(given["answer"], durable, cached)

    def _log(self, done: ReplyFuture[Reply]) -> None:
        if done.error is not None:
            logger.warning("what %r was told failed: %s", self.agent_id, done.error)
