"""A future that costs nothing until somebody wants to know. Any thread."""

import threading
from collections.abc import Callable
from typing import Any

from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.core.errors import KvactorsError

__all__ = ["AskedFuture"]


class AskedFuture(ReplyFuture[bool]):
    """Settled as what `ask` begins is, which is called once, when this is first looked at."""

    def __init__(self, ask: Callable[[], ReplyFuture[bool]]) -> None:
        super().__init__()
        self._ask: Callable[[], ReplyFuture[bool]] | None = ask
        self._asking = threading.Lock()

    @property
    def done(self) -> bool:
        """Whether a value or an error is there."""
        self._begin()
        return super().done

    def get(self, *, timeout: float | None = None) -> Any:
        """See ReplyFuture."""
        self._begin()
        return super().get(timeout=timeout)

    def on_done(self, callback: Callable[[ReplyFuture[bool]], object]) -> None:
        """See ReplyFuture."""
        self._begin()
        super().on_done(callback)

    def _begin(self) -> None:
        with self._asking:
            ask, self._ask = self._ask, None
        if ask is not None:
            try:
                ask().on_done(self.follow)
            except KvactorsError as error:
                self.reject(error)
