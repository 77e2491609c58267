"""Futures that settle exactly once, and refuse to block a pool thread."""

import threading
from typing import Any, TypeVar

from pykka import ThreadingFuture

from kvactors.core.errors import BlockingCall

__all__ = ["ReplyFuture", "check_may_block", "mark_pool_thread"]

T = TypeVar("T")

_thread = threading.local()


def mark_pool_thread() -> None:
    """Declare the calling thread one that runs actors."""
    _thread.shared = True


def check_may_block() -> None:
    """Raise BlockingCall on a thread that runs actors: it may be the one that is awaited."""
    if getattr(_thread, "shared", False):
        raise BlockingCall(
            "a blocking call inside an actor or a callback would stop other agents on this "
            "thread: send a message (tell) and handle the answer when it arrives"
        )


class ReplyFuture(ThreadingFuture[T]):
    """A pykka future whose settling may race: the first wins, the others are told so.

    `get` on a pool thread raises BlockingCall unless the result is there: it would take
    the thread that other agents need, perhaps the very one that is awaited.
    """

    @property
    def done(self) -> bool:
        """Whether a value or an error is there."""
        return self._result is not None

    def get(self, *, timeout: float | None = None) -> Any:
        """The value, or its error raised; pykka.Timeout after `timeout` seconds."""
        if not self.done and self._get_hook is None:
            check_may_block()
        return super().get(timeout=timeout)

    def resolve(self, value: T) -> bool:
        """Set the value; False if the future was settled already."""
        with self._condition:
            if self.done:
                return False
            self.set(value)
            return True

    def reject(self, error: BaseException) -> bool:
        """Set an error; False if the future was settled already."""
        with self._condition:
            if self.done:
                return False
            self.set_exception((type(error), error, error.__traceback__))
            return True
