"""ClusterAgent: the handle of an agent that lives on some node. Its methods may be called from any
thread."""

from collections.abc import Sequence
from typing import Any, NoReturn, Unpack

from kvactors.actors.agents.handle import TranscriptView
from kvactors.actors.cluster.agents.asking import Asking
from kvactors.actors.cluster.agents.messages import pack_message, send
from kvactors.actors.cluster.agents.requests import checked_ask, checked_observe, checked_rewind
from kvactors.actors.cluster.agents.streams import (
    AsyncClusterStream,
    ClusterStream,
)
from kvactors.actors.cluster.agents.transcripts import read_transcript
from kvactors.actors.cluster.machine.link import Link
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.checks import check_turn, stays_here
from kvactors.actors.turns.options import AskOptions
from kvactors.actors.turns.reply import Reply, Rewound
from kvactors.core.schedule.sampling import Sampling

__all__ = ["ClusterAgent"]


class ClusterAgent:
    """One agent of a cluster. Made by `Cluster.spawn`; the same id is the same agent, wherever it
    lives. What it is asked by one handle is answered in order."""

    def __init__(self, agent_id: str, link: Link) -> None:
        self.agent_id = agent_id
        self._link = link
        self._asking = Asking(agent_id, link)

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
        return self._asking.turn(checked_ask(prompt, **options))

    def tell(
        self,
        prompt: str | Sequence[int],
        *,
        sampling: Sampling | None = None,
        request_id: str | None = None,
    ) -> None:
        """Take a turn whose reply nobody waits for; it is remembered like any other. `prompt`,
        `sampling` and `request_id` as of `ask`."""
        request = checked_ask(prompt, sampling=sampling, request_id=request_id)
        self._asking.turn(request).on_done(self._asking.log)

    def observe(
        self, text: str, role: str = "user", *, request_id: str | None = None
    ) -> ReplyFuture[Reply]:
        """Remember a `text` without answering; `role`: any that the chat template has;
        `request_id` as of `ask`. The future resolves when it is remembered, and raises
        TemplateError."""
        return self._asking.turn(checked_observe(text, role, request_id))

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
        return self._asking.rewind(checked_rewind(turns, to_token, request_id))

    def stream(
        self, prompt: str | Sequence[int] | None = None, **options: Unpack[AskOptions]
    ) -> ClusterStream:
        """Take a turn as `ask` does, with its options, and iterate over its text as it is decoded;
        `.reply` at the end. Leaving the loop early, or `close()`, cancels the turn."""
        return ClusterStream(self._asking.reading(checked_ask(prompt, **options)))

    async def ask_async(
        self, prompt: str | Sequence[int] | None = None, **options: Unpack[AskOptions]
    ) -> Reply:
        """`ask` under asyncio, with its options. Cancelling it cancels the turn."""
        request = checked_ask(prompt, **options)
        reply = self._asking.turn(request)
        try:
            return await reply
        except BaseException:
            if not reply.done:
                self._asking.cancel(request["id"])
            raise

    def stream_async(
        self, prompt: str | Sequence[int] | None = None, **options: Unpack[AskOptions]
    ) -> AsyncClusterStream:
        """`stream` under asyncio, with its options. Leaving the loop (`aclose()` the stream, or let
        it go) or cancelling the task cancels the turn."""
        return AsyncClusterStream(self._asking.reading(checked_ask(prompt, **options)))

    def deliver(self, message: Any) -> ReplyFuture[None]:
        """Send a plain message to the agent's behaviour, from outside of the agents; text to an
        agent without one is a turn. The future resolves when it is in the mailbox, and raises
        MailboxFull, Undelivered. Raises InvalidInput for a message that has no plain form."""
        body = pack_message(message)
        return send(self._link, self.agent_id, body, None, asks=False, seconds=None)

    def request(self, message: Any, *, timeout: float | None = None) -> ReplyFuture[Any]:
        """Send one, and a future of what `on_message` returns within `timeout` seconds. It raises
        what that does (BehaviourFailed, unless it is an error of kvactors), Undelivered,
        Unanswered, MailboxFull, TurnTimeout. Raises InvalidInput as `deliver`."""
        seconds, _ = check_turn(None, timeout)
        body = pack_message(message)
        return send(self._link, self.agent_id, body, None, asks=True, seconds=seconds)

    def cancel(self) -> None:
        """End the running turn, whoever asked for it, at its next step; it replies with what was
        decoded. Where none runs, the one that waits first of those that this process asked for
        ends: it is not taken, and replies with nothing."""
        self._asking.cancel_first()

    def transcript(self) -> TranscriptView:
        """What it remembers: finished turns, none missing that anyone was given. Waits for its
        node. Where stores are encrypted it is opened here. Raises InvalidConfig without their key,
        UnknownAgent, Unanswered."""
        link = self._link
        found = link.run(link.client.read(self.agent_id, 0, link.seconds))
        return read_transcript(self.agent_id, found["records"])
