"""Two lanes: what overtakes, what a full one does, and nobody left waiting."""

import threading
from collections import deque
from typing import Any

import pykka
import pytest
from pooled import Recorder, Work

from kvactors.actors.runtime.dispatcher import Dispatcher
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.runtime.mailbox import Envelope, LanePolicy, Mailbox
from kvactors.core.errors import InvalidConfig, MailboxFull

WAIT = 30


def test_a_message_that_comes_after_the_mailbox_was_closed_is_answered(pool: Dispatcher) -> None:
    actor = Recorder(pool)
    ref = actor.begin()
    ref.ask("handled", timeout=WAIT)
    future: ReplyFuture[Any] = ReplyFuture()
    ref.stop(timeout=WAIT)

    # As from a sender that saw the actor alive.
    actor.actor_inbox.put(Envelope("late", reply_to=future))

    with pytest.raises(pykka.ActorDeadError):
        future.get(timeout=WAIT)


def test_a_message_that_comes_while_the_actor_goes_to_sleep_wakes_it(pool: Dispatcher) -> None:
    inbox, woken = Mailbox(), []

    class Sneaks(deque[Any]):
        """A lane that gets a message just after it was found empty for the last time."""

        looks = 0

        def __len__(self) -> int:
            self.looks += 1
            if self.looks == 2:
                self.append("late")
                # Between two lines of `get`: nothing public says that the actor is off the queue.
                woken.append(not inbox._scheduled)
                return 0
            return super().__len__()

    inbox.bind(Recorder(pool))
    # The lane itself must say when it was found empty: the race is between two lines of `get`.
    inbox._system = Sneaks()

    assert inbox.get() is None
    # So `put` wakes the actor, and nothing is left lying.
    assert woken == [True]


def test_the_system_lane_overtakes_prompts_and_passes_a_shut_prompt_lane(
    pool: Dispatcher,
) -> None:
    actor = Recorder(pool)
    ref = actor.begin()

    def shut(me: Recorder) -> None:
        me.actor_inbox.open_to_prompts = False

    ref.ask(shut, timeout=WAIT)
    ref.tell(Work(1))
    assert ref.ask("first", timeout=WAIT) == ["first"]
    assert ref.ask("second", timeout=WAIT) == ["first", "second"]

    def reopen(me: Recorder) -> None:
        me.actor_inbox.open_to_prompts = True

    ref.tell(reopen)
    assert ref.ask(Work(2), timeout=WAIT) == ["first", "second", Work(1), Work(2)]


def blocked(capacity: int, policy: Any, timeout: float | None = None) -> Any:
    """An actor whose full prompt lane waits behind a gate, the gate, and the last answer."""
    actor = Recorder(pool := Dispatcher("blocked", 1))
    actor.actor_inbox.lane = LanePolicy(capacity, policy, timeout)
    ref, gate, entered = actor.begin(), threading.Event(), threading.Event()

    def hold(_: Recorder) -> None:
        entered.set()
        gate.wait(WAIT)

    ref.tell(hold)
    assert entered.wait(WAIT)
    for number in range(capacity - 1):
        ref.tell(Work(number))
    return actor, ref, gate, ref.ask(Work(capacity - 1), block=False), pool


def test_the_prompt_lane_refuses_and_the_system_lane_does_not() -> None:
    _, ref, gate, last, pool = blocked(3, "refuse")

    with pytest.raises(MailboxFull, match="3 prompts wait"):
        ref.tell(Work(3))
    for number in range(100):
        ref.tell(number)
    gate.set()

    # The system lane goes first.
    assert last.get(timeout=WAIT)[100:] == [Work(0), Work(1), Work(2)]
    pool.close(WAIT)


def test_a_full_lane_can_drop_its_oldest_prompt_and_says_so() -> None:
    actor, ref, gate, first, pool = blocked(2, "drop_oldest")

    later = [ref.ask(Work(number), block=False) for number in (2, 3)]
    gate.set()

    with pytest.raises(MailboxFull, match="gave way"):
        first.get(timeout=WAIT)
    assert [future.get(timeout=WAIT) for future in later] == [[Work(2)], [Work(2), Work(3)]]
    assert actor.actor_inbox.dropped == 2
    pool.close(WAIT)


def test_a_full_lane_can_let_its_senders_wait_in_order() -> None:
    actor, ref, gate, _, pool = blocked(1, "block")
    answers: list[Any] = []

    accepted = [actor.actor_inbox.offer(Envelope(Work(number))) for number in (1, 2)]
    sender = threading.Thread(target=lambda: answers.append(ref.ask(Work(3), timeout=WAIT)))
    sender.start()
    assert [future.done for future in accepted] == [False, False]
    gate.set()
    sender.join(WAIT)

    for future in accepted:
        assert future.get(timeout=WAIT) is None
    assert answers == [list(map(Work, range(4)))]
    pool.close(WAIT)


def test_a_sender_waits_no_longer_than_the_policy_says() -> None:
    _, ref, gate, last, pool = blocked(1, "block", 0.01)

    with pytest.raises(MailboxFull):
        ref.tell(Work(1))
    gate.set()

    assert last.get(timeout=WAIT) == [Work(0)]
    pool.close(WAIT)


def test_a_sender_that_waits_for_an_actor_that_stops_is_answered() -> None:
    actor, ref, gate, _, pool = blocked(1, "block")
    future: Any = ReplyFuture()

    accepted = actor.actor_inbox.offer(Envelope(Work(1), reply_to=future))
    stopping = ref.stop(block=False)
    gate.set()

    assert stopping.get(timeout=WAIT)
    assert accepted.get(timeout=WAIT) is None
    with pytest.raises(pykka.ActorDeadError):
        future.get(timeout=WAIT)
    pool.close(WAIT)


@pytest.mark.parametrize(
    "wrong", [{"capacity": 0}, {"when_full": "explode"}, {"timeout": 0}, {"capacity": "many"}]
)
def test_a_lane_policy_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        LanePolicy(**wrong)
