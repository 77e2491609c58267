"""ClusterAgent: the handle of an agent that lives on some node. Its methods may be called from any
thread."""

import logging
from collections.abc import Sequence
from typing import Any, NoReturn, Unpack

from kvactors.actors.agents.handle import TranscriptView
from kvactors.actors.cluster.host.answers import read_reply, read_rewound
from kvactors.actors.cluster.machine.link import Link
from kvactors.actors.cluster.requests import checked_ask, checked_observe, checked_rewind
from kvactors.actors.cluster.streams import (
    AsyncClusterStream,
    ClusterStream,
    Pieces,
    Reading,
    pieces,
)
from kvactors.actors.cluster.transcripts import read_transcript
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.checks import stays_here
from kvactors.actors.turns.options import AskOptions
from kvactors.actors.turns.reply import Reply, Rewound
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

    def tell(
        self,
        prompt: str | Sequence[int],
        *,
        sampling: Sampling | None = None,
        request_id: str | None = None,
    ) -> None:
        """Take a turn whose reply nobody waits for; it is remembered like any other. `prompt`,
        `sampling` and `request_id` as of `ask`."""
        self._ask(checked_ask(prompt, sampling=sampling, request_id=request_id)).on_done(self._log)

    def observe(
        self, text: str, role: str = "user", *, request_id: str | None = None
    ) -> ReplyFuture[Reply]:
        """Remember a `text` without answering; `role`: any that the chat template has;
        `request_id` as of `ask`. The future resolves when it is remembered, and raises
        TemplateError."""
        return self._ask(checked_observe(text, role, request_id))

    def rewind(
        self,
        turns: int | None = None,
        *,
        to_token: int | None = None,
        request_id: str | None = None,
    ) -> ReplyFuture[Rewound]:
        """Forget the end of what is remembered, as `Agent.rewind` does: `turns`, or what came after
        the first `to_token` tokens. Once, as a turn is, for its `request_id` too; asked again it is
        answered with what is left by then. Raises InvalidInput at once; the future raises
        RewindOutOfRange, Unanswered."""
        return self._link.begin(self._rewound(checked_rewind(turns, to_token, request_id)))

    def stream(
        self, prompt: str | Sequence[int] | None = None, **options: Unpack[AskOptions]
    ) -> ClusterStream:
        """Take a turn as `ask` does, with its options, and iterate over its text as it is decoded;
        `.reply` at the end. Leaving the loop early, or `close()`, cancels the turn."""
        return ClusterStream(self._reading(checked_ask(prompt, **options)))

    async def ask_async(
        self, prompt: str | Sequence[int] | None = None, **options: Unpack[AskOptions]
    ) -> Reply:
        """`ask` under asyncio, with its options. Cancelling it cancels the turn."""
        request = checked_ask(prompt, **options)
        reply = self._ask(request)
        try:
            return await reply
        except BaseException:
            if not reply.done:
                self._cancel(request["id"])
            raise

    def stream_async(
        self, prompt: str | Sequence[int] | None = None, **options: Unpack[AskOptions]
    ) -> AsyncClusterStream:
        """`stream` under asyncio, with its options. Leaving the loop (`aclose()` the stream, or let
        it go) or cancelling the task cancels the turn."""
        return AsyncClusterStream(self._reading(checked_ask(prompt, **options)))

    def cancel(self) -> None:
        """End the running turn, whoever asked for it, at its next step; it replies with what was
        decoded. Where none runs, the one that waits first of those that this process asked for
        ends: it is not taken, and replies with nothing."""
        self._link.begin(self._cancel_first()).on_done(self._log)

    def transcript(self) -> TranscriptView:
        """What it remembers: finished turns, none missing that anyone was given. Waits for its
        node. Raises InvalidInput where stores are encrypted, UnknownAgent, Unanswered."""
        link = self._link
        found = link.run(link.client.read(self.agent_id, 0, link.seconds))
        return read_transcript(self.agent_id, found["records"])

    def _ask(self, request: dict[str, Any]) -> ReplyFuture[Reply]:
        return self._link.begin(self._turn(request))

    async def _turn(self, request: dict[str, Any]) -> Reply:
        return self._reply(request, await self._given(request))

    async def _rewound(self, request: dict[str, Any]) -> Rewound:
        given = await self._given(request)
        return read_rewound(given["answer"], self._durable(request, given))

    async def _given(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._link.asking(self.agent_id, request["id"]):
            async with self._order:
                seconds = self._link.patience(request)
                return await self._link.client.turn(self.agent_id, request, seconds)

    def _reading(self, request: dict[str, Any]) -> Reading:
        return Reading(self._link, self._pieces(request), lambda: self._cancel(request["id"]))

    def _cancel(self, request: str) -> None:
        self._link.begin(self._link.cancel(self.agent_id, request)).on_done(self._log)

    async def _cancel_first(self) -> None:
        if (request := await self._link.first(self.agent_id)) is not None:
            await self._link.cancel(self.agent_id, request)

    async def _pieces(self, request: dict[str, Any]) -> Pieces:
        with self._link.asking(self.agent_id, request["id"]):
            async with self._order:
                seconds = self._link.patience(request)
                items = self._link.client.stream(self.agent_id, request, seconds)
                async for piece in pieces(items, lambda given: self._reply(request, given)):
                    yield piece

    def _reply(self, request: dict[str, Any], given: dict[str, Any]) -> Reply:
        """When its KV is on disk nobody says."""
        cached = ReplyFuture[bool]()
        cached.resolve(False)
        return read_reply(given["answer"], self._durable(request, given), cached)

    def _durable(self, request: dict[str, Any], given: dict[str, Any]) -> ReplyFuture[bool]:
        """Settled at once, or when a second node has it."""
        if not given["durable"]:
            return self._link.begin(self._link.durable(self.agent_id, request["id"]))
        durable = ReplyFuture[bool]()
        durable.resolve(True)
        return durable

    def _log(self, done: ReplyFuture[Any]) -> None:
        if done.error is not None:
            logger.warning("what %r was told failed: %s", self.agent_id, done.error)
