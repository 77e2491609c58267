"""A lock for each key: others are free, actors never wait, the same thread may take it again."""

import threading

import pytest

from kvactors.actors.runtime.blocking import waiting
from kvactors.actors.runtime.keyed_lock import KeyedLock
from kvactors.core.errors import BlockingCall

WAIT = 60


def test_one_thread_has_a_key_and_others_wait_for_that_one_alone() -> None:
    lock, order = KeyedLock(), list[str]()
    begun, ended = threading.Event(), threading.Event()

    def second() -> None:
        with lock.of("other"):
            begun.set()
        with lock.of("key"):
            order.append("second")
        ended.set()

    with lock.of("key"):
        threading.Thread(target=second).start()
        assert begun.wait(WAIT)
        with lock.of("key"):
            order.append("again")
        assert not ended.wait(0.05)
        order.append("first")

    assert ended.wait(WAIT)
    assert order == ["again", "first", "second"]


def test_a_thread_that_runs_actors_is_refused_rather_than_kept_waiting() -> None:
    lock, refused = KeyedLock(), list[BaseException]()

    def acts() -> None:
        with waiting(may=False), lock.of("free"):
            pass
        with pytest.raises(BlockingCall) as raised, waiting(may=False), lock.of("key"):
            pass
        refused.append(raised.value)

    with lock.of("key"):
        thread = threading.Thread(target=acts)
        thread.start()
        thread.join(WAIT)

    assert len(refused) == 1
    with lock.of("key"):
        pass
