"""Agent: the handle that users hold. Its methods may be called from any thread."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvactors.actors.dispatcher import send
from kvactors.actors.futures import ReplyFuture
from kvactors.actors.messages import CancelTurn, Prompt
from kvactors.actors.reply import Reply, Ticket
from kvactors.actors.stream import ReplyStream
from kvactors.core.errors import EmptyPrompt, InvalidInput, TokenOutOfRange
from kvactors.core.sampling import Sampling
from kvactors.core.transcript import Turn

if TYPE_CHECKING:
    from kvactors.actors.agent import AgentActor
    from kvactors.actors.system import AgentSystem

__all__ = ["Agent", "TranscriptView"]


@dataclass(frozen=True, slots=True)
class TranscriptView:
    """An agent's memory at one moment: all token ids, their text, and the turns."""

    token_ids: tuple[int, ...]
    text: str
    turns: tuple[Turn, ...]


class Agent:
    """One agent of a system. Made by `AgentSystem.spawn`; the same id is the same agent."""

    def __init__(self, system: "AgentSystem", actor: "AgentActor") -> None:
        self._system = system
        self._actor = actor

    def __repr__(self) -> str:
        return f"<Agent {self.agent_id!r}, {len(self._actor.transcript.turns)} turns>"

    @property
    def agent_id(self) -> str:
        """The id it was spawned with."""
        return self._actor.agent_id

    @property
    def system_prompt(self) -> str | None:
        """The system prompt that its transcript begins with."""
        return self._actor.transcript.system_prompt

    def ask(
        self,
        prompt: str | Sequence[int],
        *,
        sampling: Sampling | None = None,
        timeout: float | None = None,
    ) -> ReplyFuture[Reply]:
        """Take a turn; a pykka Future of its Reply.

        `prompt` is text (a user turn, rendered with the chat template) or token ids
        (appended as they are). `timeout` in seconds bounds the whole turn, queue included:
        past it the turn is undone and the future raises TurnTimeout. Raises InvalidInput,
        SystemStopped or EngineDied at once; the future raises ContextExceeded,
        MemoryExceeded or TurnFailed. Prompts to one agent are answered in order.
        """
        return self._send(prompt, "user", sampling, timeout).reply

    def tell(self, prompt: str | Sequence[int], *, sampling: Sampling | None = None) -> None:
        """Take a turn whose reply nobody waits for; it is remembered like any other."""
        self._send(prompt, "user", sampling, None)

    def observe(self, text: str, role: str = "user") -> ReplyFuture[Reply]:
        """Remember something without answering; prefilled after the turns of others.

        The future resolves when it is remembered; nobody has to wait for it.
        """
        if not isinstance(text, str):
            raise InvalidInput(f"observe takes text, not {type(text).__name__}")
        if not isinstance(role, str) or not role:
            raise InvalidInput(f"role must be a non-empty string, not {role!r}")
        return self._send(text, role, None, None, answer=False).reply

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        sampling: Sampling | None = None,
        timeout: float | None = None,
    ) -> ReplyStream:
        """Take a turn and iterate over its text as it is decoded; `.reply` at the end.

        Leaving the loop early, or `close()`, cancels the turn.
        """
        chosen = sampling or Sampling()
        ticket = self._send(prompt, "user", chosen, timeout, streamed=True)
        return ReplyStream(ticket, self._system.chat, chosen.stop, lambda: self._cancel(ticket))

    def cancel(self) -> None:
        """End the running turn at the next step; it replies with what was decoded.

        Where none runs yet, the turn that waits first is ended as soon as it begins.
        """
        self._cancel(None)

    def transcript(self) -> TranscriptView:
        """What the agent remembers: finished turns, the running one not included."""
        turns = tuple(self._actor.transcript.turns)
        tokens = tuple(token for turn in turns for token in turn.token_ids)
        return TranscriptView(tokens, self._system.chat.decode(tokens), turns)

    def _cancel(self, ticket: Ticket | None) -> None:
        send(self._actor.actor_ref, CancelTurn(ticket))

    def _send(
        self,
        prompt: str | Sequence[int],
        role: str,
        sampling: Sampling | None,
        timeout: float | None,
        *,
        answer: bool = True,
        streamed: bool = False,
    ) -> Ticket:
        text, tokens = self._check(prompt)
        if sampling is not None and not isinstance(sampling, Sampling):
            raise InvalidInput(f"sampling must be a Sampling, not {type(sampling).__name__}")
        if timeout is not None and not _is_duration(timeout):
            raise InvalidInput(f"timeout must be above 0 seconds and finite, not {timeout!r}")
        chosen = sampling or Sampling()

        def make(ticket: Ticket) -> Prompt:
            return Prompt(ticket, role, text, tokens, chosen, answer)

        return self._system.send(self._actor, make, timeout, streamed=streamed)

    def _check(self, prompt: str | Sequence[int]) -> tuple[str | None, tuple[int, ...] | None]:
        if isinstance(prompt, str):
            if not prompt:
                raise EmptyPrompt("the prompt is empty")
            return prompt, None
        if isinstance(prompt, bytes) or not hasattr(prompt, "__iter__"):
            raise InvalidInput(
                f"a prompt is text or a list of token ids, not {type(prompt).__name__}"
            )
        tokens = tuple(_token(token, self._system.spec.vocab_size) for token in prompt)
        if not tokens:
            raise EmptyPrompt("the prompt has no token ids")
        return None, tokens


def _is_duration(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value < float("inf")  # type: ignore[operator]


def _token(token: object, vocab_size: int) -> int:
    try:
        value = token.__index__()  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        raise InvalidInput(f"token ids are ints, not {token!r}") from None
    if isinstance(token, bool) or not 0 <= value < vocab_size:
        raise TokenOutOfRange(
            f"token id {token!r} is outside the vocabulary: 0 <= id < {vocab_size}"
        )
    return int(value)
