"""Pooled actors: pykka's semantics on few threads, and no message left waiting."""

import gc
import logging
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pykka
import pytest
from pooled import Recorder, Work

from kvactors.actors.runtime import dispatcher as module
from kvactors.actors.runtime.dispatcher import Dispatcher, PooledActor, SystemActor, handles
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.runtime.mailbox import Envelope, Mailbox
from kvactors.actors.runtime.timer import FEW, Deadline, Timer
from kvactors.core.errors import BlockingCall

WAIT = 30


def test_messages_are_handled_in_order(pool: Dispatcher) -> None:
    ref = Recorder.start(pool)

    for number in range(500):
        ref.tell(number)

    assert ref.ask("last", timeout=WAIT) == [*range(500), "last"]


def test_an_exception_goes_to_the_asker_and_the_actor_lives(
    pool: Dispatcher, caplog: pytest.LogCaptureFixture
) -> None:
    ref, error = Recorder.start(pool), ValueError("mine")

    with caplog.at_level(logging.INFO, "pykka"), pytest.raises(ValueError, match="mine"):
        ref.ask(error, timeout=WAIT)

    # The line is there before the asker knows, and nothing else is.
    line = f"Exception returned from {ref} to caller:"
    assert caplog.record_tuples == [("pykka", logging.INFO, line)]
    assert caplog.records[0].exc_info
    assert caplog.records[0].exc_info[1] is error
    assert ref.ask("alive", timeout=WAIT) == ["alive"]


@pytest.mark.parametrize("error", [ValueError("told"), SystemExit(3)])
def test_an_exception_nobody_asked_for_ends_that_actor_alone(
    pool: Dispatcher, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    actor = Recorder(pool)
    ref, bystander = actor.begin(), Recorder.start(pool)

    ref.tell(error)
    future = ref.ask("late", block=False)

    with pytest.raises(pykka.ActorDeadError):
        future.get(timeout=WAIT)
    assert actor.events == ["start", "failure"]
    assert bystander.ask("here", timeout=WAIT) == ["here"]


def test_stop_handles_what_came_before_and_answers_what_came_after(pool: Dispatcher) -> None:
    actor = Recorder(pool)
    ref = actor.begin()
    gate = threading.Event()
    ref.tell(lambda _actor: gate.wait(WAIT))
    before = ref.ask("before", block=False)
    stopped = ref.stop(block=False)
    after = ref.ask("after", block=False)
    gate.set()

    assert before.get(timeout=WAIT) == ["before"]
    assert stopped.get(timeout=WAIT)
    with pytest.raises(pykka.ActorDeadError):
        after.get(timeout=WAIT)
    assert actor.events == ["start", "stop"]
    assert ref.stop(timeout=WAIT) is False


def test_every_one_of_200_000_asks_that_race_stop_is_answered(pool: Dispatcher) -> None:
    refs = [Recorder.start(pool) for _ in range(2000)]
    unanswered = threading.Semaphore(0)

    def ask_all() -> None:
        for _ in range(50):
            for ref in refs:
                future: Any = ref.ask(None, block=False)
                future.on_done(lambda _: unanswered.release())

    askers = [threading.Thread(target=ask_all) for _ in range(2)]
    for asker in askers:
        asker.start()
    stops = [ref.stop(block=False) for ref in refs]
    for asker in askers:
        asker.join()
    for stop in stops:
        stop.get(timeout=WAIT)

    for _ in range(200_000):
        assert unanswered.acquire(timeout=WAIT)
    assert not unanswered.acquire(blocking=False)


def test_a_flooded_mailbox_delays_others_by_at_most_a_batch() -> None:
    one = Dispatcher("one", 1)
    actor = Recorder(one)
    flooded, other = actor.begin(), Recorder.start(one)
    assert other.ask("started", timeout=WAIT) == ["started"]
    gate, entered = threading.Event(), threading.Event()

    def hold(_: Recorder) -> None:
        entered.set()
        gate.wait(WAIT)

    flooded.tell(hold)
    assert entered.wait(WAIT)
    for number in range(1000):
        flooded.tell(number)
    seen = other.ask(lambda _other: len(actor.seen), block=False)
    gate.set()

    # The message that held it up was the first of its batch.
    assert seen.get(timeout=WAIT) == module.BATCH - 1
    one.close(WAIT)


def test_a_blocking_get_is_refused_on_every_pool_thread_at_once() -> None:
    pool, never = Dispatcher("pair", 2), ReplyFuture[int]()
    together = threading.Barrier(2)

    def get(_: Recorder) -> Any:
        together.wait(WAIT)
        return never.get(timeout=WAIT)

    answers = [Recorder.start(pool).ask(get, block=False) for _ in range(2)]

    for answer in answers:
        with pytest.raises(BlockingCall, match="await the future"):
            answer.get(timeout=WAIT)
    pool.close(WAIT)


def test_blocking_is_allowed_on_threads_meant_for_it(pool: Dispatcher) -> None:
    slow = Dispatcher("slow", 1, blocking=True)
    helper = Recorder.start(pool)

    answer = Recorder.start(slow).ask(lambda _: helper.ask("hello", timeout=WAIT), timeout=WAIT)

    assert answer == ["hello"]
    slow.close(WAIT)


def test_an_answer_that_is_a_future_reaches_the_asker_as_its_value(pool: Dispatcher) -> None:
    ref, inner = Recorder.start(pool), ReplyFuture[str]()
    foreign: pykka.Future[str] = pykka.ThreadingFuture()

    answer = ref.ask(lambda _: inner, block=False)
    other = ref.ask(lambda _: foreign, block=False)
    assert ref.ask("not held up", timeout=WAIT) == ["not held up"]
    inner.resolve("value")
    foreign.set("another")

    assert answer.get(timeout=WAIT) == "value"
    assert other.get(timeout=WAIT) == "another"


def test_a_registered_actor_that_exits_stops_the_others_as_in_pykka(
    pool: Dispatcher, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pykka")

    class Exits(PooledActor):
        dispatcher = pool

        def on_receive(self, message: Any) -> Any:
            raise SystemExit(message)

    bystander, system_actor = Exits.start(), Recorder.start(pool)

    exits = Exits.start()
    with pytest.raises(SystemExit):
        exits.ask(1, timeout=WAIT)

    assert bystander.actor_stopped.wait(WAIT)
    line = f"SystemExit(1) in {exits}. Stopping all actors."
    assert ("pykka", logging.DEBUG, line) in caplog.record_tuples
    assert system_actor.ask("here", timeout=WAIT) == ["here"]


def test_a_future_settles_once_and_says_who_was_first() -> None:
    future: ReplyFuture[int] = ReplyFuture()

    assert not future.done
    assert future.resolve(1)
    assert not future.resolve(2)
    assert not future.reject(ValueError())
    assert future.get(timeout=0) == 1


def test_registered_actors_keep_pykkas_registry(pool: Dispatcher) -> None:
    class Registered(PooledActor):
        dispatcher = pool

    ref = Registered.start()
    assert pykka.ActorRegistry.get_by_urn(ref.actor_urn) == ref

    ref.stop(timeout=WAIT)

    assert pykka.ActorRegistry.get_by_urn(ref.actor_urn) is None


def test_a_timer_calls_back_in_the_order_of_the_moments() -> None:
    timer, called, done = Timer(), [], threading.Event()

    timer.after(0.03, done.set)
    timer.after(0.02, lambda: called.append("second"))
    timer.after(0.001, lambda: called.append("first"))

    assert done.wait(WAIT)
    assert called == ["first", "second"]
    timer.close()


def test_a_timer_keeps_few_deadlines_that_were_cancelled_and_calls_the_others_in_order() -> None:
    timer, called, done = Timer(), list[int](), threading.Event()
    before = sum(type(one) is Deadline for one in gc.get_objects())

    timer.after(0.3, done.set)
    for number in range(10 * FEW):
        timer.after(3600, done.set).cancel()
        if number % FEW == 0:
            timer.after(number / 10_000, partial(called.append, number))

    assert sum(type(one) is Deadline for one in gc.get_objects()) - before <= 2 * FEW
    assert done.wait(WAIT)
    assert called == list(range(0, 10 * FEW, FEW))
    timer.close()


def test_a_message_that_comes_while_an_actor_is_bound_queues_it_once() -> None:
    class Sender:
        """A lock that is taken by somebody else first, who sends a message."""

        def __init__(self) -> None:
            self.inner, self.sent = threading.Lock(), False

        def __enter__(self) -> None:
            if not self.sent:
                self.sent = True
                mailbox.put(Envelope("early"))
            self.inner.acquire()

        def __exit__(self, *_: Any) -> None:
            self.inner.release()

    queued, mailbox = list[Any](), Mailbox()
    actor: Any = SimpleNamespace(dispatcher=SimpleNamespace(schedule=queued.append))
    lock: Any = Sender()
    # A mailbox has no room for a lock of somebody else's: there are a hundred thousand.
    mailbox._lock = lock

    mailbox.bind(actor)

    assert queued == [actor]
    assert mailbox.get().message == "early"


def test_a_message_goes_to_the_method_that_is_marked_with_its_type(pool: Dispatcher) -> None:
    class Base(SystemActor):
        dispatcher = pool

        @handles(str)
        def take_text(self, message: str) -> str:
            return f"text {message}"

        @handles(Work)
        def take_work(self, message: Work) -> int:
            return message.number

    class Derived(Base):
        @handles(Work)
        def take_work_otherwise(self, message: Work) -> int:
            return -message.number

    base, derived = Base.start(), Derived.start()

    assert (base.ask("a"), base.ask(Work(1))) == ("text a", 1)
    assert (derived.ask("b"), derived.ask(Work(2))) == ("text b", -2)
