"""One process of the simulated cluster: it dies, and stands still, between two of its steps."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from random import Random
from typing import Any

from kvactors.actors.cluster.testing.machines.loop import VirtualLoop

__all__ = ["Process", "SimClock", "new_loop"]

_CURRENT: ContextVar["Process | None"] = ContextVar("process", default=None)


class Process:
    """Whatever happens to it comes through `deliver`: not at all when it is dead, and later when it
    is paused."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.name, self.loop = name, loop
        self.alive, self.paused = True, False
        self._backlog: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._at_death: dict[object, Callable[[], object]] = {}
        self._context = copy_context()
        self._context.run(_CURRENT.set, self)

    def deliver(self, do: Callable[..., object], *args: Any) -> None:
        """`do` it now, if it lives and runs."""
        if self.alive and self.paused:
            self._backlog.append((do, args))
        elif self.alive:
            do(*args)

    def later(self, seconds: float, do: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Deliver it in so many seconds."""
        return self.loop.call_later(seconds, self.deliver, do, *args)

    async def wait(self, seconds: float) -> None:
        """Return so much later, or not at all."""
        if not self.alive:
            raise asyncio.CancelledError
        done = self.loop.create_future()
        self.later(seconds, _set, done)
        await done

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run it in this process."""
        return self.loop.create_task(work, context=self._context)

    def own(self, task: asyncio.Task[Any]) -> None:
        """The task is one of its own, and dies with it."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def at_death(self, key: object, do: Callable[[], object]) -> None:
        """What others see of its death."""
        self._at_death[key] = do

    def no_more(self, key: object) -> None:
        """That is of no interest any more."""
        self._at_death.pop(key, None)

    def kill(self) -> None:
        """At once and for ever; what it had on its way to disk is decided by `at_death`."""
        if self.alive:
            self.alive = False
            for do in list(self._at_death.values()):
                do()
            for task in sorted(self._tasks, key=lambda task: task.get_name()):
                task.cancel()

    def pause(self) -> None:
        """Its timers and messages stand still; its clock does not."""
        self.paused = True

    def resume(self, rng: Random) -> None:
        """All that came meanwhile happens now, in any order."""
        self.paused = False
        backlog, self._backlog = self._backlog, []
        rng.shuffle(backlog)
        for do, args in backlog:
            self.deliver(do, *args)


class SimClock:
    """That of a `process`: it goes at its own `rate` from its own `offset`."""

    def __init__(self, process: Process, rate: float, offset: float) -> None:
        self._process, self._rate, self._offset = process, rate, offset

    def now(self) -> float:
        """Its own seconds."""
        return self._offset + self._rate * self._process.loop.time()

    async def sleep(self, seconds: float) -> None:
        """So many of its own seconds."""
        await self._process.wait(seconds / self._rate)


def new_loop() -> VirtualLoop:
    """A loop whose tasks belong to the process that made them."""
    loop = VirtualLoop()
    numbers = iter(range(2**62))

    def factory(
        loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **kept: Any
    ) -> asyncio.Task[Any]:
        context = kept.get("context")
        owner = context[_CURRENT] if context is not None else _CURRENT.get()
        task = asyncio.Task(work, loop=loop, name=f"{next(numbers):09d}", context=context)
        if owner is not None:
            owner.own(task)
            if not owner.alive:
                task.cancel()
        return task

    loop.set_task_factory(factory)  # type: ignore[arg-type]
    return loop


def _set(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
