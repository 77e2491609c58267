"""A crowd at the door: connections that wait for a turn, and requests that are refused.

In a process of its own, on a thread of it, so that it goes on while nobody asks for it.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from socket import SO_LINGER, SOL_SOCKET
from struct import pack
from time import perf_counter
from typing import Any, TypeVar
from urllib.parse import urlsplit

from kvactors.bench.serve.client import encoded
from kvactors.bench.serve.clients import Request

__all__ = ["crowd"]

# So many ask at once for what is refused.
LINES = 8
_T = TypeVar("_T")


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
    """Begins when it is made. Raises RuntimeError where who is to wait is refused."""

    def __init__(self, url: str, waiting: tuple[Request, ...], rate: float) -> None:
        self._url, self._rate = urlsplit(url), rate
        self._refused = 0
        self._writers = list[asyncio.StreamWriter]()
        self._ends = list[asyncio.Task[bytes]]()
        self._lines = list[asyncio.Task[None]]()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._do(self._begin(waiting))
        except BaseException:
            self._stop()
            raise
        self._since, self._before = perf_counter(), self._refused

    def end(self) -> float:
        """Raises RuntimeError where somebody had an answer, who was to wait."""
        rate = (self._refused - self._before) / (perf_counter() - self._since)
        if answered := self._stop():
            raise RuntimeError(f"{answered} of {len(self._ends)} streams ended: they did not wait")
        return rate

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop(self) -> int:
        """How many streams had ended by now."""
        answered = self._do(self._leave())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        return answered

    async def _begin(self, waiting: tuple[Request, ...]) -> None:
        readers = [await self._wait(request) for request in waiting]
        self._ends += [asyncio.create_task(reader.read()) for reader in readers]
        lines = LINES if self._rate else 0
        self._lines += [asyncio.create_task(self._line()) for _ in range(lines)]

    async def _leave(self) -> int:
        answered = sum(end.done() for end in self._ends)
        for task in (*self._ends, *self._lines):
            task.cancel()
        await asyncio.gather(*self._ends, *self._lines, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        return answered

    async def _wait(self, request: Request) -> asyncio.StreamReader:
        """Ask, and stay there once the answer's headers have come."""
        reader, writer = await asyncio.open_connection(self._url.hostname, self._url.port)
        self._writers.append(writer)
        writer.write(encoded(request, self._url.netloc))
        said = (await reader.readuntil(b"\r\n\r\n")).decode()
        if said.split()[1] != "200":
            raise RuntimeError(f"who was to wait was refused: {said}")
        return reader

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
            # No port is left waiting behind it: else there are none after some seconds.
            writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, pack("ii", 1, 0))
            writer.close()
            due = max(due + LINES / self._rate, perf_counter() - 1)
            await asyncio.sleep(max(0.0, due - perf_counter()))
