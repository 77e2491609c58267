"""Streams that are told something at once wake their loop once, and none is left asleep."""

import asyncio
import sys
import threading
from typing import Any

from kvactors.actors.turns.wakes import Wakes, wakes_of


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts who wakes it."""

    woken = 0

    def call_soon_threadsafe(self, *args: Any, **options: Any) -> asyncio.Handle:  # type: ignore[override]
        self.woken += 1
        return super().call_soon_threadsafe(*args, **options)


def test_many_that_are_told_before_the_loop_looks_are_one_wake() -> None:
    loop = CountingLoop()
    wakes, events = Wakes(loop), [asyncio.Event() for _ in range(16)]

    async def all_of_them() -> None:
        await asyncio.gather(*(event.wait() for event in events))

    for event in events:
        wakes.set(event)
    loop.run_until_complete(all_of_them())

    assert loop.woken == 1
    loop.close()


def test_whoever_waits_is_woken_however_many_threads_tell() -> None:
    rounds, threads = 3000, 4
    interval = sys.getswitchinterval()

    async def all_of_them() -> int:
        wakes = wakes_of(asyncio.get_running_loop())
        events = [asyncio.Event() for _ in range(threads)]
        heard = [threading.Event() for _ in range(threads)]

        def tell(number: int) -> None:
            for _ in range(rounds):
                wakes.set(events[number])
                assert heard[number].wait(20)
                heard[number].clear()

        async def hear(number: int) -> int:
            for _ in range(rounds):
                await events[number].wait()
                events[number].clear()
                heard[number].set()
            return rounds

        telling = [threading.Thread(target=tell, args=(n,)) for n in range(threads)]
        for thread in telling:
            thread.start()
        async with asyncio.timeout(30):
            count = sum(await asyncio.gather(*map(hear, range(threads))))
        for thread in telling:
            thread.join()
        return count

    sys.setswitchinterval(1e-6)
    try:
        assert asyncio.run(all_of_them()) == rounds * threads
    finally:
        sys.setswitchinterval(interval)


def test_a_loop_that_is_closed_is_told_in_vain() -> None:
    loop = asyncio.new_event_loop()
    wakes = Wakes(loop)
    loop.close()

    wakes.set(asyncio.Event())

    assert wakes_of(loop) is wakes_of(loop)
