"""Many actors: spawn, tell, ask, stop, memory; and what busy threads cost the GPU thread.

    python -m kvactors.bench.micro.actors [--quick] [--agents 100000]

Regime: idle machine. Every contender runs in a process of its own: agents of an AgentSystem,
PooledActor alone, pykka's ThreadingActor (10,000 at most: each is a thread), and asyncio tasks
with a queue each. Memory is resident size per actor, each of which has handled one message.
Tells go round all actors, up to a million in all. For spawns and tells the CPU time of all threads
together is given too, since neighbours change it less. Then the decode step of 4 rows beside
threads that compute in Python.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pykka import ThreadingActor

from kvactors.actors import AgentSystem
from kvactors.actors.runtime.dispatcher import Dispatcher, SystemActor
from kvactors.bench.micro.busy_threads import ROWS, decode_step
from kvactors.bench.random_model import DESCRIPTION, random_llama
from kvactors.bench.report import print_json, print_table

__all__ = ["main"]

TELLS, ASKS = 1_000_000, 20_000
MOST_THREADS = 10_000
BUSY = (0, 1, 4)
COLUMNS = (
    "spawn_us",
    "spawn_cpu_us",
    "bytes",
    "tells_per_s",
    "tell_cpu_us",
    "asks_per_s",
    "stop_us",
)

Figures = dict[str, float]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print tables and a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="500 actors, few of everything")
    parser.add_argument("--agents", type=int, default=100_000)
    parser.add_argument("--only", choices=_CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    count = 500 if options.quick else options.agents
    if options.only:
        print(json.dumps(_CONTENDERS[options.only](count)))
        return
    rows = []
    for name in _CONTENDERS:
        for size in (count,) if options.quick else (count // 10 or 1, count):
            if name != "threads" or size <= MOST_THREADS:
                figures = _in_a_process(name, size)
                rows.append((name, size, *(figures[column] for column in COLUMNS)))
    print_table("Actors, each contender in a process of its own.", ("", "n", *COLUMNS), rows)
    steps = [(busy, decode_step(busy, 32 if options.quick else 200)) for busy in BUSY]
    alone = steps[0][1]
    beside = [(busy, step, alone / step) for busy, step in steps]
    print_table(
        f"Decode step of {ROWS} rows beside busy threads.\n{DESCRIPTION}, 4-bit KV.",
        ("busy threads", "ms", "of alone"),
        beside,
    )
    named = [dict(zip(("kind", "n", *COLUMNS), row, strict=True)) for row in rows]
    decode = [dict(zip(("busy", "ms", "share"), row, strict=True)) for row in beside]
    print_json("actors", rows=named, decode=decode)


def _in_a_process(name: str, count: int) -> Figures:
    command = [sys.executable, "-m", __spec__.name, "--only", name, "--agents", str(count)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def _resident() -> int:
    """Bytes of this process in memory now."""
    if sys.platform == "linux":
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096
    command = ["ps", "-o", "rss=", "-p", str(os.getpid())]
    return int(subprocess.check_output(command, text=True)) * 1024


def _rounds(count: int) -> int:
    """How often all actors are told something."""
    return max(1, min(TELLS // count, 100))


def _asks(count: int) -> int:
    return min(ASKS, 4 * count)


# -- contenders ------------------------------------------------------------------------


class _Clock:
    """Wall and CPU time since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self, events: int) -> tuple[float, float]:
        """Events per second, and microseconds of CPU for each."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return events / wall, cpu / events * 1e6


class _Count(SystemActor):
    """Counts what it is told; answers with the count."""

    dispatcher: Dispatcher

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def on_receive(self, message: Any) -> int:
        self.seen += 1
        return self.seen


class _Threaded(ThreadingActor):
    use_daemon_thread = True

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def on_receive(self, message: Any) -> int:
        self.seen += 1
        return self.seen


def _pooled(count: int) -> Figures:
    _Count.dispatcher = Dispatcher("bench", 2)
    return _pykka(count, _Count.start)


def _threads(count: int) -> Figures:
    return _pykka(count, _Threaded.start)


def _pykka(count: int, start: Callable[[], Any]) -> Figures:
    before, clock = _resident(), _Clock()
    refs = [start() for _ in range(count)]
    spawned = clock.read(count)
    _ask_all(refs)
    per_actor = (_resident() - before) / count
    clock, rounds = _Clock(), _rounds(count)
    for _ in range(rounds):
        for ref in refs:
            ref.tell(None)
    _ask_all(refs)
    told = clock.read((rounds + 1) * count)
    asked = _seconds_of_asks(refs)
    begin = time.perf_counter()
    for future in [ref.stop(block=False) for ref in refs]:
        future.get()
    stopped = time.perf_counter() - begin
    return _figures(count, spawned, per_actor, told, asked, stopped)


def _ask_all(refs: list[Any]) -> None:
    """Every actor has handled all that it was sent."""
    for future in [ref.ask(None, block=False) for ref in refs]:
        future.get()


def _seconds_of_asks(refs: list[Any]) -> float:
    """One after the other, each answer awaited."""
    count, begin = len(refs), time.perf_counter()
    for index in range(_asks(count)):
        refs[index % count].ask(None)
    return time.perf_counter() - begin


def _tasks(count: int) -> Figures:
    return asyncio.run(_tasks_on_loop(count))


async def _tasks_on_loop(count: int) -> Figures:
    async def serve(inbox: asyncio.Queue[Any]) -> None:
        seen = 0
        while (message := await inbox.get()) is not StopIteration:
            seen += 1
            if message is not None:
                message.set_result(seen)

    async def ask(inbox: asyncio.Queue[Any]) -> None:
        answer = asyncio.get_running_loop().create_future()
        inbox.put_nowait(answer)
        await answer

    before, clock = _resident(), _Clock()
    inboxes: list[asyncio.Queue[Any]] = [asyncio.Queue() for _ in range(count)]
    tasks = [asyncio.create_task(serve(inbox)) for inbox in inboxes]
    spawned = clock.read(count)
    for inbox in inboxes:
        await ask(inbox)
    per_actor = (_resident() - before) / count
    clock, rounds = _Clock(), _rounds(count)
    for _ in range(rounds):
        for inbox in inboxes:
            inbox.put_nowait(None)
    for inbox in inboxes:
        await ask(inbox)
    told = clock.read((rounds + 1) * count)
    begin = time.perf_counter()
    for index in range(_asks(count)):
        await ask(inboxes[index % count])
    asked = time.perf_counter() - begin
    begin = time.perf_counter()
    for inbox in inboxes:
        inbox.put_nowait(StopIteration)
    await asyncio.gather(*tasks)
    stopped = time.perf_counter() - begin
    return _figures(count, spawned, per_actor, told, asked, stopped)


def _agents(count: int) -> Figures:
    with AgentSystem(random_llama, store=False) as system:
        system.spawn("first")
        before, clock = _resident(), _Clock()
        agents = [system.spawn(f"agent {number}") for number in range(count)]
        spawned = clock.read(count)
        for agent in agents:
            agent.cancel()
        per_actor = (_resident() - before) / count
        clock, rounds = _Clock(), _rounds(count)
        for _ in range(rounds):
            for agent in agents:
                agent.cancel()
        agents[-1].rewind(to_token=0).get()
        told = clock.read(rounds * count)
        begin = time.perf_counter()
        for index in range(_asks(count)):
            agents[index % count].rewind(to_token=0).get()
        asked = time.perf_counter() - begin
        begin = time.perf_counter()
    stopped = time.perf_counter() - begin
    return _figures(count, spawned, per_actor, told, asked, stopped)


def _figures(
    count: int,
    spawned: tuple[float, float],
    per_actor: float,
    told: tuple[float, float],
    asked: float,
    stopped: float,
) -> Figures:
    rate, cpu = spawned
    values = (1e6 / rate, cpu, per_actor, *told, _asks(count) / asked, stopped / count * 1e6)
    return {name: round(value, 1) for name, value in zip(COLUMNS, values, strict=True)}


_CONTENDERS = {"agents": _agents, "pooled": _pooled, "threads": _threads, "asyncio": _tasks}


if __name__ == "__main__":
    main()
