"""Agent: the handle that users hold. Its methods may be called from any thread."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, Unpack

from kvactors.actors.agents.actor import AgentActor
from kvactors.actors.agents.host import AgentHost
from kvactors.actors.runtime.dispatcher import send
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.checks import (
    check_id,
    check_known,
    check_request_id,
    check_rewind,
    naming_nearest,
    stays_here,
)
from kvactors.actors.turns.messages_agent import Ask, CancelTurn, Prompt, Rewind
from kvactors.actors.turns.options import AskOptions, TurnOptions, check_options, observing
from kvactors.actors.turns.prompt import Messages
from kvactors.actors.turns.reply import Reply, Rewound
from kvactors.actors.turns.stream import AsyncReplyStream, ReplyStream
from kvactors.actors.turns.ticket import Ticket, next_serial
from kvactors.core.conversation.prefix_match import THRESHOLD
from kvactors.core.conversation.turn import Turn
from kvactors.core.schedule.sampling import Sampling

__all__ = ["Agent", "TranscriptView", "agent_named"]


@dataclass(frozen=True)
class TranscriptView:
    """An agent's memory at one moment: the turns, all token ids, and their text."""

    turns: tuple[Turn, ...]

    # Made for who asks: whoever looks at each turn of a long conversation does not.
    @cached_property
    def token_ids(self) -> tuple[int, ...]:
        """Of all turns."""
        return tuple(token for turn in self.turns for token in turn.token_ids)

    @cached_property
    def text(self) -> str:
        """Of all turns, as they were rendered."""
        return "".join(turn.rendered for turn in self.turns)


class Agent:
    """One agent of a system. Made by `AgentSystem.spawn`; the same id is the same agent.

    `host` is what its system's agents have in common; `ended` whether a behaviour of it
    ever has, `ended_by` what the last one failed with.
    """

    def __init__(self, host: AgentHost, actor: AgentActor) -> None:
        self.host = host
        self._actor = actor
        self.ended = False
        self.ended_by: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Agent {self.agent_id!r}, {len(self._actor.transcript.turns)} turns>"

    def __reduce__(self) -> NoReturn:
        stays_here(self, "pass its agent_id, and spawn it there")

    @property
    def agent_id(self) -> str:
        """The id it was spawned with."""
        return self._actor.agent_id

    @property
    def system_prompt(self) -> str | None:
        """The system prompt that its transcript begins with."""
        return self._actor.transcript.system_prompt

    @naming_nearest
    def ask(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Messages | None = None,
        match: bool = False,
        threshold: float = THRESHOLD,
        sampling: Sampling | None = None,
        timeout: float | None = None,
        priority: int = 0,
        request_id: str | None = None,
        template_kwargs: dict[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> ReplyFuture[Reply]:
        """Take a turn; a pykka Future of its Reply.

        `prompt` is text (a user turn, rendered with the chat template) or token ids
        (appended as they are). A caller that keeps the conversation itself sends all of it:
        as `messages`, [{"role": ..., "content": ...}, ...], where a content is text or text
        parts, [{"type": "text", "text": ...}, ...], or as one text with `match=True`, in the
        form of `transcript().text`. It is compared with the transcript by characters,
        and what is the same is kept; `reply.match` says how it compared:

        - "exact": nothing is new; the last answer is given again.
        - "extend": all of the transcript is kept, only the rest is tokenized.
        - "diverge": they part, or the prompt ends early. If at least `threshold` of the
          transcript's characters match, those are kept and the rest is forgotten; else the
          transcript starts again.

        `sampling` says how to decode. `timeout` in seconds bounds the whole turn, queue included:
        past it the turn is undone and the future raises TurnTimeout. Where turns wait for room,
        one with a higher `priority` goes first, until another was passed over often enough; one
        below 0 leaves a place free for the others.
        A turn with a `request_id` (1 to 200 characters) is taken once: where the agent's ledger has
        a turn of this id, its answer is given again (`reply.recorded`).
        `template_kwargs` are passed to the chat template for this turn, over those of the system,
        such as {"enable_thinking": False}. What that writes before the first question stays as it
        is, until a context policy drops that question.
        `continue_final_message`: the answer goes on with the last of `messages`, which is the
        assistant's; without messages with the agent's last one, such as one that was cut by
        `max_tokens`. The reply has what is new, the transcript one answer.
        Prompts to one agent are answered in order. Raises InvalidInput, MailboxFull, SaveQueueFull,
        SystemStopped or EngineDied at once; the future raises InvalidInput, ContextExceeded,
        MemoryExceeded, AdmissionFull or TurnFailed.
        """
        turn = check_options(
            self.host.info,
            prompt,
            messages=messages,
            match=match,
            threshold=threshold,
            sampling=sampling,
            timeout=timeout,
            priority=priority,
            request_id=request_id,
            template_kwargs=template_kwargs,
            continue_final_message=continue_final_message,
        )
        return self._send(turn).reply

    @naming_nearest
    def tell(
        self,
        prompt: str | Sequence[int],
        *,
        sampling: Sampling | None = None,
        request_id: str | None = None,
    ) -> None:
        """Take a turn whose reply nobody waits for; it is remembered like any other. `prompt`,
        `sampling` and `request_id` as of `ask`."""
        options = check_options(self.host.info, prompt, sampling=sampling, request_id=request_id)
        self._send(options)

    def observe(
        self, text: str, role: str = "user", *, request_id: str | None = None
    ) -> ReplyFuture[Reply]:
        """Remember a `text` without answering; prefilled after the turns of others.

        `role`: any that the model's chat template has; for another the future raises
        TemplateError, and nothing is remembered. `request_id` as of `ask`.

        The future resolves when it is remembered; nobody has to wait for it.
        """
        return self._send(observing(self.host.info, text, role, request_id=request_id)).reply

    def stream(
        self, prompt: str | Sequence[int] | None = None, **options: Unpack[AskOptions]
    ) -> ReplyStream:
        """Take a turn as `ask` does, with the same options (messages, match, threshold, sampling,
        timeout, priority, request_id, template_kwargs, continue_final_message), and iterate over
        its text as it is decoded; `.reply` at the end.

        Leaving the loop early, or `close()`, cancels the turn.
        """
        turn = _checked(self.host, prompt, options)
        ticket = self._send(turn, streamed=True)
        return ReplyStream(ticket, turn.sampling.stop, lambda: _cancel(self._actor, ticket))

    async def ask_async(
        self, prompt: str | Sequence[int] | None = None, **options: Unpack[AskOptions]
    ) -> Reply:
        """Take a turn as `ask` does, with the same options, under asyncio. `await agent.ask(...)`
        does so too; here cancelling the task cancels the turn."""
        ticket = self._send(_checked(self.host, prompt, options))
        try:
            reply: Reply = await ticket.reply
        except BaseException:
            if not ticket.reply.done:
                _cancel(self._actor, ticket)
            raise
        return reply

    def stream_async(
        self, prompt: str | Sequence[int] | None = None, **options: Unpack[AskOptions]
    ) -> AsyncReplyStream:
        """Take a turn as `stream` does, with the same options, and iterate over its pieces under
        asyncio; `.reply` at the end. Leaving the loop (`aclose()` the stream, or let it go) or
        cancelling the task cancels the turn."""
        turn = _checked(self.host, prompt, options)
        ticket = self._send(turn, streamed=True)
        return AsyncReplyStream(ticket, turn.sampling.stop, lambda: _cancel(self._actor, ticket))

    def deliver(self, message: Any) -> ReplyFuture[None]:
        """Send a message to the agent's behaviour, from outside of the agents.

        The future resolves when it is in the mailbox. To nobody: a dead letter.
        """
        return self.host.post(self.agent_id, message)

    def request(self, message: Any, *, timeout: float | None = None) -> ReplyFuture[Any]:
        """Send a message to the agent's behaviour; a future of what `on_message` returns.

        Raises in the future what it raises, Undelivered, MailboxFull, or TurnTimeout after
        `timeout` seconds.
        """
        return self.host.request(self.agent_id, message, timeout)

    def rewind(
        self,
        turns: int | None = None,
        *,
        to_token: int | None = None,
        request_id: str | None = None,
    ) -> ReplyFuture[Rewound]:
        """Forget the end of what is remembered; a pykka Future of Rewound.

        `turns` (default 1) counts from the end: a turn is a prompt with its answer, or
        something observed. `to_token` keeps that many tokens of `transcript().token_ids`; a
        turn that it cuts keeps the part of its text that its tokens stand for. Happens in
        order with prompts, and moves no bytes: the ledger records it, the next turn uses what
        is left of the cache. With a `request_id` it is done once however often it is asked: then
        it is answered with what is left by now. Raises at once what a prompt does: InvalidInput,
        MailboxFull, SaveQueueFull, SystemStopped or EngineDied; the future raises RewindOutOfRange
        if less than that is remembered, and nothing is forgotten.
        """
        count, kept = check_rewind(turns, to_token)
        named = check_request_id(request_id)

        def make(ticket: Ticket) -> Prompt:
            return Rewind(ticket, count, kept, named)

        return self.host.send(self._actor, make, None, streamed=False).reply

    def forget_own(self, turns: int, last: Turn) -> ReplyFuture[Rewound]:
        """Rewind so many `turns`, unless another one than `last` is the last one by then: for who
        takes back what it asked for itself. Raises as a prompt does at once."""

        def make(ticket: Ticket) -> Prompt:
            return Rewind(ticket, turns, None, last=last)

        return self.host.send(self._actor, make, None, streamed=False).reply

    def cancel(self) -> None:
        """End the running turn at the next step; it replies with what was decoded.

        Where none runs yet, the turn that waits first is ended as soon as it begins.
        """
        _cancel(self._actor, None)

    def transcript(self) -> TranscriptView:
        """What the agent remembers: finished turns, the running one not included."""
        return TranscriptView(tuple(self._actor.transcript.turns))

    def open_turn(self, turn: TurnOptions) -> Ticket:
        """Take a turn for who reads its tokens and futures off the ticket himself: front ends.
        Raises as `ask` does at once."""
        return self._send(turn, streamed=True)

    def end_turn(self, ticket: Ticket) -> None:
        """End the turn of a ticket at the next step; what was decoded and prefilled stays."""
        if not ticket.reply.done:
            _cancel(self._actor, ticket)

    def _send(self, turn: TurnOptions, *, streamed: bool = False) -> Ticket:
        def make(ticket: Ticket) -> Prompt:
            return Ask(ticket, turn)

        return self.host.send(self._actor, make, turn.timeout, streamed=streamed)


def _cancel(actor: AgentActor, ticket: Ticket | None) -> None:
    send(actor.actor_ref, CancelTurn(ticket, serial=next_serial()))


def _checked(
    host: AgentHost, prompt: str | Sequence[int] | None, options: AskOptions
) -> TurnOptions:
    check_known("ask", options, AskOptions.__annotations__)
    return check_options(host.info, prompt, **options)


def agent_named(agent: object) -> str:
    """The id of an agent, given as it or as its handle, of this system or of a cluster. Raises
    InvalidAgentId."""
    agent_id = agent if isinstance(agent, str) else getattr(agent, "agent_id", agent)
    check_id(agent_id)
    return str(agent_id)
