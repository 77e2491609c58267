"""A crowd at the door: connections that wait for a turn, and requests that are refused.

In a process of its own, on a thread of it, so that it goes on while nobody asks for it.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from urllib.parse import urlsplit

from kvactors.bench.serve.client import encoded
from kvactors.bench.serve.clients import Request

__all__ = ["crowd"]

# So many ask at once for what is refused.
LINES = 8


def crowd() -> Callable[..., float]:
    """What is returned is given a URL, what `waiting` clients ask, and how many requests a second
    are to be refused; it returns when all wait. Given nothing, it ends them, and returns how many
    requests a second were refused."""
    running: list[_Crowd] = []

    def act(url: str = "", waiting: tuple[Request, ...] = (), rate: float = 0.0) -> float:
        if url:
            running.append(_Crowd(url, waiting, rate))
            return 0.0
        return running.pop().end()

    return act


class _Crowd:
    """Begins when it is made."""

    def __init__(self, url: str, waiting: tuple[Request, ...], rate: float) -> None:
        self._url, self._waiting, self._rate = urlsplit(url), waiting, rate
        self._refused = 0
        self._there = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._run(),), daemon=True
        )
        self._thread.start()
        self._there.wait()
        self._begin, self._before = perf_counter(), self._refused

    def end(self) -> float:
        rate = (self._refused - self._before) / (perf_counter() - self._begin)
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        return rate

    async def _run(self) -> None:
        open_ = [await self._wait(request) for request in self._waiting]
        lines = [asyncio.create_task(self._line()) for _ in range(LINES if self._rate else 0)]
        self._there.set()
        await self._over.wait()
        for task in lines:
            task.cancel()
        await asyncio.gather(*lines, return_exceptions=True)
        for writer in open_:
            writer.close()

    async def _wait(self, request: Request) -> asyncio.StreamWriter:
        """Ask, and stay there once the answer's headers have come."""
        reader, writer = await asyncio.open_connection(self._url.hostname, self._url.port)
        writer.write(encoded(request, self._url.netloc))
        await reader.readuntil(b"\r\n\r\n")
        return writer

    async def _line(self) -> None:
        """Ask for another host, which is refused, at this line's part of the rate."""
        asked = encoded(Request("/v1/chat/completions", {}), "elsewhere.example")
        due = perf_counter()
        while True:
            reader, writer = await asyncio.open_connection(self._url.hostname, self._url.port)
            writer.write(asked)
            with suppress(ConnectionError):
                assert b"403" in await reader.readline()
                self._refused += 1
            writer.close()
            due = max(due + LINES / self._rate, perf_counter() - 1)
            await asyncio.sleep(max(0.0, due - perf_counter()))
