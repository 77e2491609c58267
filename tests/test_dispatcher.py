"""Pooled actors: pykka's semantics on few threads, two lanes, and no message left waiting."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pykka
import pytest

from kvactors.actors import dispatcher as module
from kvactors.actors.dispatcher import Dispatcher, MailboxFull, PooledActor
from kvactors.actors.futures import ReplyFuture
from kvactors.actors.timer import Timer

WAIT = 30


@dataclass(frozen=True)
class Work:
    number: int
    in_prompt_lane: bool = True


class Recorder(PooledActor):
    registered = False

    def __init__(self, dispatcher: Dispatcher) -> None:
        super().__init__()
        self.dispatcher = dispatcher
        self.seen: list[Any] = []
        self.events: list[str] = []

    def on_start(self) -> None:
        self.events.append("start")

    def on_stop(self) -> None:
        self.events.append("stop")

    def on_failure(self, *_info: Any) -> None:
        self.events.append("failure")

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, BaseException):
            raise message
        if callable(message):
            return message(self)
        self.seen.append(message)
        return list(self.seen)


@pytest.fixture
def pool() -> Iterator[Dispatcher]:
    dispatcher = Dispatcher("test", 2)
    yield dispatcher
    dispatcher.close(WAIT)


def test_messages_are_handled_in_order(pool: Dispatcher) -> None:
    ref = Recorder.start(pool)

    for number in range(500):
        ref.tell(number)

    assert ref.ask("last", timeout=WAIT) == [*range(500), "last"]


def test_an_exception_goes_to_the_asker_and_the_actor_lives(pool: Dispatcher) -> None:
    ref = Recorder.start(pool)

    with pytest.raises(ValueError, match="mine"):
        ref.ask(ValueError("mine"), timeout=WAIT)

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


def test_every_ask_that_races_stop_ends_in_a_reply_or_an_error(pool: Dispatcher) -> None:
    refs = [Recorder.start(pool) for _ in range(200)]
    futures: list[Any] = []

    def ask_all() -> None:
        futures.extend([ref.ask(i, block=False) for ref in refs for i in range(10)])

    askers = [threading.Thread(target=ask_all) for _ in range(2)]
    for asker in askers:
        asker.start()
    stops = [ref.stop(block=False) for ref in refs]
    for asker in askers:
        asker.join()
    for stop in stops:
        stop.get(timeout=WAIT)

    ended = 0
    for future in futures:
        with contextlib.suppress(pykka.ActorDeadError):
            future.get(timeout=WAIT)
        ended += 1
    assert ended == 4000


def test_a_flooded_mailbox_delays_others_by_at_most_a_batch() -> None:
    one = Dispatcher("one", 1)
    actor = Recorder(one)
    flooded, other = actor.begin(), Recorder.start(one)
    gate = threading.Event()
    flooded.tell(lambda _actor: gate.wait(WAIT))
    for number in range(1000):
        flooded.tell(number)
    seen = other.ask(lambda _other: len(actor.seen), block=False)
    gate.set()

    assert seen.get(timeout=WAIT) <= module.BATCH
    one.close(WAIT)


def test_the_system_lane_overtakes_prompts_and_passes_a_shut_prompt_lane(
    pool: Dispatcher,
) -> None:
    actor = Recorder(pool)
    ref = actor.begin()

    def shut(me: Recorder) -> None:
        me.actor_inbox.open_to_prompts = False

    ref.ask(shut, timeout=WAIT)
    ref.tell(Work(1))
    assert ref.ask("system", timeout=WAIT) == ["system"]

    def reopen(me: Recorder) -> None:
        me.actor_inbox.open_to_prompts = True

    ref.tell(reopen)
    assert ref.ask(Work(2), timeout=WAIT) == ["system", Work(1), Work(2)]


def test_the_prompt_lane_is_bounded_and_the_system_lane_is_not(
    pool: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROMPT_LANE", 3)
    ref = Recorder.start(pool)
    gate = threading.Event()
    ref.tell(lambda _actor: gate.wait(WAIT))
    ref.ask(lambda me: None, block=False)
    for number in range(3):
        ref.tell(Work(number))

    with pytest.raises(MailboxFull, match="3 prompts wait"):
        ref.tell(Work(3))
    for number in range(100):
        ref.tell(number)

    monkeypatch.setattr(module, "PROMPT_LANE", 4)
    last = ref.ask(Work(9), block=False)
    gate.set()
    assert len(last.get(timeout=WAIT)) == 104


def test_a_future_settles_once_and_says_who_was_first() -> None:
    future: ReplyFuture[int] = ReplyFuture()

    assert not future.done
    assert future.resolve(1)
    assert not future.resolve(2)
    assert not future.reject(ValueError())
    assert future.get(timeout=0) == 1


def test_registered_actors_keep_pykkas_registry(pool: Dispatcher) -> None:
    class Registered(Recorder):
        registered = True

    ref = Registered.start(pool)
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
