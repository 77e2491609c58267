"""Futures and threads under strain: long chains, no thread to be had, garbage at a bad moment."""

import asyncio
import gc
import os
import signal
import sys
import threading
import weakref
from functools import partial
from typing import Any

import pytest
from pooled import Recorder, Work
from seeded import bug, seeded

from kvactors.actors.runtime.blocking import add_driver, check_may_block, remove_driver
from kvactors.actors.runtime.blocking_pool import AT_ONCE, BlockingWork
from kvactors.actors.runtime.dispatcher import Dispatcher
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.runtime.mailbox import Envelope, Mailbox
from kvactors.actors.runtime.timer import Timer
from kvactors.core.errors import BlockingCall

WAIT = 30


def test_a_chain_of_futures_is_settled_however_long_it_is() -> None:
    first, *others = chain = [ReplyFuture[str]() for _ in range(5 * sys.getrecursionlimit())]
    for source, follower in zip(chain, others, strict=False):
        source.on_done(follower.follow)

    first.resolve("done")

    assert chain[-1].get(timeout=0) == "done"


def test_callbacks_that_wait_for_others_are_called_by_who_settles() -> None:
    threads = set[int]()
    first, *others = chain = [ReplyFuture[None]() for _ in range(200)]
    for source, follower in zip(chain, others, strict=False):
        source.on_done(follower.follow)
        source.on_done(lambda _: threads.add(threading.get_ident()))

    settling = threading.Thread(target=first.resolve, args=(None,))
    settling.start()
    settling.join(WAIT)

    assert threads == {settling.ident}


@pytest.mark.parametrize(("long", "wide"), [(51, 3000), (20_000, 1)])
def test_many_that_wait_behind_a_chain_are_settled(long: int, wide: int) -> None:
    first, *others = chain = [ReplyFuture[str]() for _ in range(long)]
    for source, follower in zip(chain, others, strict=False):
        source.on_done(follower.follow)
    waiting = [ReplyFuture[str]() for _ in range(wide)]
    for one in waiting:
        chain[-1].on_done(one.follow)

    first.resolve("done")

    assert all(one.done for one in waiting)


def test_who_waited_under_asyncio_and_waits_no_longer_leaves_nothing() -> None:
    async def wait_a_little() -> "weakref.ref[asyncio.AbstractEventLoop]":
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(pending, 0.001)
        return weakref.ref(asyncio.get_running_loop())

    pending, called = ReplyFuture[str](), list[str]()
    pending.on_done(lambda done: called.append(done.get()))
    loop = asyncio.run(wait_a_little())
    gc.collect()
    assert loop() is None

    pending.resolve("late")
    assert called == ["late"]


def test_garbage_that_is_collected_under_a_mailboxs_lock_may_write_to_it(pool: Dispatcher) -> None:
    actor = Recorder(pool)
    ref = actor.begin()
    ref.ask("there", timeout=WAIT)

    class Collects:
        """A lane that is looked at when a stream is let go, which cancels its turn."""

        when_full = "refuse"

        @property
        def capacity(self) -> int:
            ref.tell("cancelled")
            return 10

    actor.actor_inbox.lane = Collects()  # type: ignore[assignment]
    asking = threading.Thread(target=ref.tell, args=(Work(1),), daemon=True)
    asking.start()
    asking.join(WAIT)

    assert not asking.is_alive()
    seen = ref.ask("last", timeout=WAIT)
    assert "cancelled" in seen
    assert actor.actor_inbox.offer(Envelope(Work(2))) is None


def test_garbage_that_is_collected_as_an_actor_goes_to_sleep_wakes_it_once() -> None:
    class Once(Mailbox):
        """One that is written to when it is found empty for the last time."""

        left: list[Envelope[Any]] | None = None

        @property
        def open_to_prompts(self) -> bool:
            if self.left:
                self.put(self.left.pop())
            return True

        @open_to_prompts.setter
        def open_to_prompts(self, _: bool) -> None:
            pass

    class Reader:
        """An actor that counts how often it is queued."""

        queued = 0
        dispatcher: Any

        def __init__(self) -> None:
            self.dispatcher = self

        def schedule(self, _: Any) -> None:
            self.queued += 1

    inbox, reader = Once(), Reader()
    inbox.bind(reader)  # type: ignore[arg-type]
    inbox.put(Envelope(Work(1)))
    inbox.left = [Envelope("collected")]

    goes_on = inbox.yield_turn()

    # By whom it was written to, and not by this thread too.
    assert (goes_on, reader.queued) == (False, 2)


def test_a_callback_of_the_timer_may_not_wait() -> None:
    timer, refused = Timer(), ReplyFuture[str]()

    def wait() -> None:
        try:
            check_may_block()
        except BlockingCall as error:
            refused.resolve(str(error))
        else:
            refused.resolve("")

    timer.after(0.0, wait)

    assert "would stop other agents" in refused.get(timeout=WAIT)
    timer.close()


class Waits(threading.Event):
    """Is told when somebody is about to wait."""

    def drive(self, _until: Any, _timeout: float | None) -> None:
        self.set()


def test_an_interrupt_that_comes_as_its_thread_lies_down_ends_a_wait() -> None:
    answer, waits = ReplyFuture[None](), Waits()
    rescue = threading.Timer(WAIT / 3, lambda: answer.resolve(None))

    def interrupt() -> None:
        # The other thread lets this one go on when it lies down.
        waits.wait()
        # Noted by this thread, it does not wake the one that is to raise it.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        os.kill(os.getpid(), signal.SIGINT)

    rescue.start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    threading.Thread(target=interrupt).start()
    add_driver(waits)
    try:
        with pytest.raises(KeyboardInterrupt):
            answer.get()
    finally:
        remove_driver(waits)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        rescue.cancel()

    assert not answer.done


@bug(threading.Thread, "start")
def there_are_no_threads_any_more(true: Any) -> Any:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    return refuse


def test_what_blocks_is_done_by_the_threads_that_there_are() -> None:
    ended = list[int]()
    work = BlockingWork(lambda: None, lambda: ended.append(1))
    gate = threading.Event()
    runs = work.run(lambda: gate.wait(WAIT), here=False)

    with seeded(there_are_no_threads_any_more):
        waits: Any = [work.run(partial(int, n), here=False) for n in range(2 * AT_ONCE)]
        assert not any(future.done for future in waits)
        gate.set()
        assert [future.get(timeout=WAIT) for future in waits] == list(range(2 * AT_ONCE))

    assert runs.get(timeout=WAIT) is True
    assert len(ended) == 1 + len(waits)


def test_what_blocks_fails_where_no_thread_can_be_had() -> None:
    work = BlockingWork(lambda: None, lambda: None)

    with seeded(there_are_no_threads_any_more):
        for _ in range(2 * AT_ONCE):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                work.run(lambda: "never", here=False).get(timeout=WAIT)

    assert work.run(lambda: "now", here=False).get(timeout=WAIT) == "now"
