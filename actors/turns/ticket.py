"""Ticket: who waits for a turn, and what they are told as it goes on. Any thread."""

import itertools
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.schedule.events import Begun, Tokens

__all__ = ["Ticket", "next_serial"]

_serials = itertools.count(1)


def next_serial() -> int:
    """A number above that of every turn asked so far."""
    return next(_serials)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Ticket:
    """The waiting side of one turn: futures to settle, tokens to stream.

    `chat` is the tokenizer of its tokens, set when the turn begins, as is `behind`, the tokens that
    the answer goes on with. `on_end` is called once
    the reply is settled, whoever settles it; `on_push` whenever there is something new in
    `tokens`, whose last is None. `admitted`, of a streamed turn, says how much of its prompt has
    KV when it is known; None if the turn ended before.
    """

    agent_id: str
    submitted_at: float
    serial: int = field(default_factory=next_serial)
    reply: ReplyFuture[Any] = field(default_factory=ReplyFuture)
    durable: ReplyFuture[bool] = field(default_factory=ReplyFuture)
    cached: ReplyFuture[bool] = field(default_factory=ReplyFuture)
    tokens: "queue.SimpleQueue[Tokens | None] | None" = None
    chat: ChatFormat | None = None
    behind: tuple[int, ...] = ()
    admitted: ReplyFuture[Begun | None] | None = None
    on_end: "Callable[[Ticket], None] | None" = None
    on_push: Callable[[], None] | None = None

    @classmethod
    def begin(cls, agent_id: str, *, streamed: bool) -> "Ticket":
        """A new turn, asked for now."""
        tokens = queue.SimpleQueue[Tokens | None]() if streamed else None
        admitted = ReplyFuture[Begun | None]() if streamed else None
        return cls(agent_id, time.perf_counter(), tokens=tokens, admitted=admitted)

    def begin_prefill(self, begun: Begun) -> None:
        """A streamed turn was admitted: `begun` says how much of its prompt has KV."""
        if self.admitted is not None:
            self.admitted.resolve(begun)

    def keep_nothing(self) -> None:
        """Nothing of the turn will be on disk."""
        self.durable.resolve(False)
        self.cached.resolve(False)

    def resolve(self, value: Any) -> bool:
        """The turn ended with a reply, unless it had ended before."""
        first = self.reply.resolve(value)
        if first:
            self._end()
        return first

    def reject(self, error: BaseException) -> bool:
        """The turn ended without one, unless it had ended before; nothing of it will be on disk."""
        first = self.reply.reject(error)
        self.durable.reject(error)
        self.cached.reject(error)
        if first:
            self._end()
        return first

    def _end(self) -> None:
        if self.on_end is not None:
            self.on_end(self)
        if self.admitted is not None:
            self.admitted.resolve(None)
        self.push(None)

    def push(self, tokens: Tokens | None) -> None:
        """Pass tokens to a stream, if there is one; None: there are no more."""
        if self.tokens is not None:
            self.tokens.put(tokens)
            if self.on_push is not None:
                self.on_push()
