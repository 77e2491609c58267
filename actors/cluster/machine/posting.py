"""Messages from any thread to the agents of a cluster: sealed where its nodes have a key, and
handed to the loop together."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from kvactors.actors.cluster.machine.known import as_known
from kvactors.actors.cluster.machine.seals import Seals
from kvactors.actors.cluster.protocol.errors import HostFailed
from kvactors.actors.cluster.protocol.interfaces import Letter
from kvactors.actors.cluster.protocol.outbox import Outbox, Outgoing
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.core.errors import SystemStopped, TurnTimeout

__all__ = ["Posting"]


class Posting:
    """Posts by `outbox`, which belongs to `loop`; `words` gives the seals of what is said, if there
    are any, or raises InvalidConfig."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, outbox: Outbox, words: Callable[[], Seals | None]
    ) -> None:
        self._loop, self._outbox, self._words = loop, outbox, words
        self._new: deque[Outgoing] = deque()
        self._woken = self._closed = False

    def post(
        self,
        to: str,
        letter: Letter,
        read: Callable[[bytes], Any],
        lives: Callable[[], bool] = lambda: True,
        left: Callable[[], object] = lambda: None,
    ) -> ReplyFuture[Any]:
        """A future of what the agent `to` answers to `letter`, as it is `read`; where that asks
        nothing, of None when it is in the mailbox there. `lives`, `left`: see Outgoing. It fails
        with Undelivered, Unanswered, MailboxFull, TurnTimeout, what keeps the agent from beginning,
        and what `read` raises. Raises InvalidConfig without the key of encrypted nodes."""
        seals = self._words()
        if seals is not None:
            letter = letter.sealed(seals.message(to, letter.body))
        future: ReplyFuture[Any] = ReplyFuture()

        timers: list[asyncio.TimerHandle] = []

        def ended(body: bytes | None, error: Exception | None) -> None:
            # Or it would keep the answer until then.
            for timer in timers:
                timer.cancel()
            try:
                if isinstance(error, HostFailed):
                    raise as_known(error if seals is None else seals.open_failure(to, error))
                if error is not None:
                    raise error
                if body is not None and seals is not None:
                    body = seals.open_told(to, body)
                future.resolve(None if body is None else read(body))
            except Exception as failed:
                future.reject(failed)

        self._new.append(Outgoing(to, letter, ended, lives, left))
        if self._closed:
            for outgoing in self._each():
                outgoing.ended(None, _gone())
        elif not self._woken:
            # One wake for all that come until the loop looks.
            self._woken = True
            self._soon(self._take)
        if letter.seconds is not None:
            self._soon(self._end_late, to, letter.seconds, future, timers)
        return future

    def close(self) -> None:
        """Everything that waits ends with SystemStopped. On the loop."""
        # Before the last look: who posts behind that sees it.
        self._closed = True
        self._take()
        self._outbox.close(_gone())

    def _end_late(
        self,
        to: str,
        seconds: float,
        future: ReplyFuture[Any],
        timers: list[asyncio.TimerHandle],
    ) -> None:
        if not future.done:
            late = TurnTimeout(f"{to!r} did not answer within {seconds:g} s")
            timers.append(self._loop.call_later(seconds, future.reject, late))

    def _take(self) -> None:
        self._woken = False
        for outgoing in self._each():
            self._outbox.post(outgoing)

    def _each(self) -> Iterator[Outgoing]:
        """What is new: each once, whichever threads look."""
        with suppress(IndexError):
            while True:
                yield self._new.popleft()

    def _soon(self, callback: Callable[..., object], *given: Any) -> None:
        # A loop that has ended was left before: then `close` has seen what is new.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *given)


def _gone() -> SystemStopped:
    return SystemStopped("this process leaves its cluster")
