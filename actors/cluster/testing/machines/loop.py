"""An asyncio loop whose time is made up: it passes only while all wait."""

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any

__all__ = ["VirtualLoop"]


class VirtualLoop(asyncio.SelectorEventLoop):
    """The same coroutines run in the same order in each run; hours take milliseconds."""

    def __init__(self) -> None:
        self._moment = 0.0
        super().__init__(_Nothing(self))

    def time(self) -> float:
        """Seconds since it was made."""
        return self._moment

    def pass_time(self, seconds: float) -> None:
        """Nobody has anything to do for so long."""
        self._moment += seconds


class _Nothing(selectors.BaseSelector):
    """There are no files to wait for: time passes at once."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """The loop's own pipe."""
        self._keys[fileobj] = selectors.SelectorKey(fileobj, fileobj, events, data)
        return self._keys[fileobj]

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """When the loop is closed."""
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Until the next timer."""
        if timeout is None:
            raise RuntimeError("all wait for each other, and no timer runs")
        self._loop.pass_time(timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """What is registered."""
        return self._keys
