"""Simulated messages: late, lost, out of order, twice, and not at all between some."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random

from kvactors.actors.cluster.protocol.errors import Unreachable
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.wire import answered, pack, serve, serve_stream
from kvactors.actors.cluster.testing.machines.process import Process

__all__ = ["Network", "SimTransport"]

Handle = Callable[[str, Record], Awaitable[Record]]
Stream = Callable[[str, Record], AsyncIterator[Record]]
Item = bytes | Unreachable | None

TRIP = (0.0005, 0.004)
LATE = (0.3, 6.0)
BREAKS = (0.05, 1.0)


class Network:
    """Who is where, and who does not hear whom."""

    def __init__(self, rng: Random, step: Callable[[Process, str], None]) -> None:
        self.rng, self.step = rng, step
        self._servers: dict[str, tuple[Process, Handle, Stream | None]] = {}
        self.cut: set[tuple[str, str]] = set()
        self.lost, self.late, self.twice = 0.0, 0.0, 0.0

    def heal(self) -> None:
        """No faults any more."""
        self.cut = set()
        self.lost = self.late = self.twice = 0.0

    def serve(self, process: Process, handle: Handle, stream: Stream | None = None) -> None:
        """Calls to the name of `process` go to `handle` and `stream` from now on."""
        self._servers[process.name] = (process, handle, stream)

    def trip(self, sender: str, to: str) -> float | None:
        """Seconds that a message takes, or None: it is lost."""
        if (sender, to) in self.cut or self.rng.random() < self.lost:
            return None
        return self.rng.uniform(*(LATE if self.rng.random() < self.late else TRIP))

    def send(self, channel: "Channel", method: str, data: bytes) -> None:
        """`method` with `data` towards the server; what becomes of it is seen on `channel`."""
        twice = self.rng.random() < self.twice
        # Both to one process: a connection ends with it.
        only = self._servers[channel.to][0] if twice and channel.to in self._servers else None
        self._launch(channel, method, data, only)
        if twice:
            # What the second one is answered nobody hears.
            self._launch(channel.unheard(), method, data, only)

    def _launch(self, channel: "Channel", method: str, data: bytes, only: Process | None) -> None:
        seconds = self.trip(channel.caller.name, channel.to)
        if seconds is None:
            channel.break_off()
        else:
            channel.caller.loop.call_later(seconds, self._arrive, channel, method, data, only)

    def _arrive(self, channel: "Channel", method: str, data: bytes, only: Process | None) -> None:
        process, handle, stream = self._servers.get(channel.to, (None, None, None))
        gone = process is None or not process.alive or only not in (None, process)
        if gone or (channel.caller.name, channel.to) in self.cut:
            channel.break_off()
            return
        assert process is not None
        key = object()
        process.at_death(key, channel.break_off)

        async def work() -> None:
            self.step(process, f"before {method}")
            if channel.streams:
                assert stream is not None
                async for item in serve_stream(stream, method, data):
                    channel.back(item)
                channel.back(None)
            else:
                assert handle is not None
                answer = await serve(handle, method, data)
                self.step(process, f"after {method}")
                channel.back(answer)
            process.no_more(key)

        process.deliver(lambda: process.start(work()))


class Channel:
    """One call by `caller` of the `method` of `to`, over `network`: what comes back, in order; one
    item, or many if it `streams`."""

    def __init__(
        self, network: Network, caller: Process, to: str, method: str, *, streams: bool
    ) -> None:
        self._network, self.caller, self.to = network, caller, to
        self._method, self.streams = method, streams
        self.items: asyncio.Queue[Item] = asyncio.Queue()
        self._coming: deque[Item] = deque()
        self._last = 0.0
        self._broken = False

    def unheard(self) -> "Channel":
        """Another for the same call, which nobody listens to."""
        return Channel(self._network, self.caller, self.to, self._method, streams=self.streams)

    def back(self, item: Item) -> None:
        """An item on its way to the caller."""
        if self._broken:
            return
        seconds = self._network.trip(self.to, self.caller.name)
        if seconds is None:
            self.break_off()
            return
        self._coming.append(item)
        # Two of one moment would come in any order.
        self._last = max(self._last + 1e-6, self.caller.loop.time() + seconds)
        self.caller.loop.call_at(self._last, self.caller.deliver, self._next)

    def _next(self) -> None:
        """In order, though a process that stood still looks at what came meanwhile in any."""
        self.items.put_nowait(self._coming.popleft())

    def break_off(self) -> None:
        """The caller finds out, some time."""
        self._broken = True
        error = Unreachable(to=self.to, method=self._method)
        seconds = self._network.rng.uniform(*BREAKS)
        self.caller.later(seconds, self.items.put_nowait, error)


class SimTransport:
    """A Transport of one process."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network, self._process = network, process

    async def call(
        self, to: str, method: str, record: Record, *, within: float | None = None
    ) -> Record:
        """The answer of `to` to `method` of `record`, if it comes `within` so long."""
        channel = self._open(to, method, record, streams=False)
        if within is not None:
            late = Unreachable(to=to, method=method)
            self._process.later(within, channel.items.put_nowait, late)
        return _given(await channel.items.get())

    async def stream(self, to: str, method: str, record: Record) -> AsyncIterator[Record]:
        """The items that `to` answers to `method` of `record`."""
        channel = self._open(to, method, record, streams=True)
        while (item := await channel.items.get()) is not None:
            yield _given(item)

    def _open(self, to: str, method: str, record: Record, *, streams: bool) -> Channel:
        if not self._process.alive:
            raise asyncio.CancelledError
        self._network.step(self._process, f"calling {method}")
        channel = Channel(self._network, self._process, to, method, streams=streams)
        self._network.send(channel, method, pack(record))
        return channel


def _given(item: Item) -> Record:
    if isinstance(item, Unreachable):
        raise item
    assert item is not None
    return answered(item)
