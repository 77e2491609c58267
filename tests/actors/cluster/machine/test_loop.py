"""A loop on a thread of its own: who may wait for it, and that its end leaves nobody waiting."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from seeded import bug, seeded

from kvactors.actors import BlockingCall, SystemStopped
from kvactors.actors.cluster.machine import loop as loops
from kvactors.actors.cluster.machine.loop import LoopThread

WAIT = 60


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread("of a test")
    yield loop
    loop.stop()


def test_a_callback_on_the_loop_may_not_wait_for_the_loop(loop: LoopThread) -> None:
    goes_on = asyncio.Event()
    second = loop.begin(goes_on.wait()).future.map(lambda _: loop.run(asyncio.sleep(0)))

    loop.loop.call_soon_threadsafe(goes_on.set)

    with pytest.raises(BlockingCall, match="would stop other agents"):
        second.get(timeout=WAIT)


def test_whatever_is_begun_as_the_loop_is_stopped_ends(loop: LoopThread) -> None:
    begun = list[Any]()

    @bug(loops, "_cancel_all")
    def meanwhile_one_begins(true: Any) -> Any:
        async def cancel_all() -> None:
            await true()
            begins = threading.Thread(target=begin)
            begins.start()
            await asyncio.to_thread(begins.join)

        return cancel_all

    def begin() -> None:
        try:
            begun.append(loop.begin(asyncio.sleep(0)).future)
        except SystemStopped as error:
            begun.append(error)

    with seeded(meanwhile_one_begins):
        loop.stop()

    [late] = begun
    assert isinstance(late, SystemStopped) or late.done
    with pytest.raises(SystemStopped, match="was left"):
        loop.run(asyncio.sleep(0))
