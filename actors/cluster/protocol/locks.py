"""A lock for each name, while somebody uses it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["Locks"]


class Locks:
    """What concerns one agent, or one node, is done one after the other."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, list[None]]] = {}

    def busy(self, name: str) -> bool:
        """Whether somebody has it, or waits for it."""
        return name in self._locks

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of `name`."""
        lock, users = self._locks.setdefault(name, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[name]
