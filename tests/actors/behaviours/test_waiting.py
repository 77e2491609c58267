"""Who may wait for what: plain functions, asyncio, what blocks, full mailboxes, and the end."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from behaviours import Does, DoesAtOnce, Recorder, run
from makers import OpenSystem

from kvactors.actors import (
    Agent,
    AgentBehaviour,
    AgentSystem,
    BlockingCall,
    InvalidInput,
    LanePolicy,
    MailboxFull,
    Sampling,
    SystemStopped,
    TurnTimeout,
    Undelivered,
)
from kvactors.actors.runtime.blocking_pool import AT_ONCE
from kvactors.actors.runtime.timer import Deadline

SHORT = Sampling(max_tokens=4)
WAIT = 60


def test_a_plain_function_cannot_wait_unless_it_has_its_own_thread(system: AgentSystem) -> None:
    class OnItsOwn(DoesAtOnce):
        blocking = True

    def think(me: AgentBehaviour) -> str:
        return me.think([1], sampling=SHORT).get(timeout=WAIT).finish_reason  # type: ignore[no-any-return]

    with pytest.raises(BlockingCall):
        system.spawn("pooled", behaviour=DoesAtOnce()).request(think).get(timeout=WAIT)
    own = system.spawn("own", behaviour=OnItsOwn())

    assert own.request(think).get(timeout=WAIT) == "length"
    names = {thread.name for thread in threading.enumerate()}
    assert "kvactors-own-0" in names


def test_whatever_a_behaviour_does_can_be_awaited(system: AgentSystem) -> None:
    async def everything(me: Any) -> list[Any]:
        other = await me.spawn("other", behaviour=Recorder())
        done = [await me.subscribe("news"), await me.publish("news", 1), await me.watch(other)]
        done += [await me.unsubscribe("news"), await me.broadcast("hello"), await me.send(other, 1)]
        return [*done, await me.observe("seen"), await me.rewind(), await me.stop(other)]

    done = run(system, everything)

    assert done[:6] == [None] * 6
    assert (done[7].turns, done[8]) == (0, None)


@pytest.mark.parametrize(("seconds", "kind"), [(0, TypeError), (0.1, RuntimeError)])
def test_a_behaviour_that_awaits_something_of_asyncio_is_told_so(
    system: AgentSystem, seconds: float, kind: type[Exception]
) -> None:
    async def sleep(me: AgentBehaviour) -> None:
        await asyncio.sleep(seconds)

    with pytest.raises(kind) as raised:
        run(system, sleep)
    told = [str(raised.value), *getattr(raised.value, "__notes__", ())]
    assert "nothing of asyncio" in told[-1]


def test_blocking_work_runs_elsewhere(system: AgentSystem) -> None:
    async def work(me: AgentBehaviour) -> str:
        return await me.run_blocking(lambda: threading.current_thread().name)  # type: ignore[no-any-return]

    assert run(system, work).startswith("kvactors-blocking")


def test_blocking_work_that_waits_for_other_blocking_work_does_not_keep_it_from_beginning(
    system: AgentSystem,
) -> None:
    clients = AT_ONCE + 1
    all_at_once = threading.Barrier(AT_ONCE)

    class Service(AgentBehaviour):
        async def on_message(self, message: int, sender: Agent | None) -> int:
            return await self.run_blocking(lambda: message + 1)  # type: ignore[no-any-return]

    class Client(AgentBehaviour):
        async def on_message(self, message: int, sender: Agent | None) -> int:
            def slow() -> int:
                if message < AT_ONCE:
                    all_at_once.wait(WAIT)
                return self.ask("service", message).get(timeout=WAIT)  # type: ignore[no-any-return]

            return await self.run_blocking(slow)  # type: ignore[no-any-return]

    system.spawn("service", behaviour=Service())
    asked = [system.spawn(f"{n}", behaviour=Client()).request(n) for n in range(clients)]

    assert [answer.get(timeout=WAIT / 4) for answer in asked] == list(range(1, clients + 1))


def test_what_a_message_does_in_the_end_is_done_though_its_asker_waits_no_longer(
    system: AgentSystem,
) -> None:
    gate, released = threading.Event(), threading.Event()

    class Lock(AgentBehaviour):
        async def on_message(self, message: str, sender: Agent | None) -> str:
            return message

    class Holder(AgentBehaviour):
        async def on_message(self, message: str, sender: Agent | None) -> str:
            if message == "hold":
                await self.hold()
            return message

        async def hold(self) -> None:
            try:
                await self.run_blocking(gate.wait, WAIT)
            finally:
                assert await self.ask("lock", "release") == "release"
                released.set()

    system.spawn("lock", behaviour=Lock())
    holder = system.spawn("holder", behaviour=Holder())

    with pytest.raises(TurnTimeout):
        holder.request("hold", timeout=0.05).get(timeout=WAIT)

    assert released.wait(WAIT)
    gate.set()
    assert holder.request("well?").get(timeout=WAIT) == "well?"


def test_a_full_mailbox_holds_a_sender_back_or_refuses(system: AgentSystem) -> None:
    entered, gate = threading.Event(), threading.Event()

    class Slow(Recorder):
        blocking = True

        def on_message(self, message: Any, sender: Agent | None) -> int:
            entered.set()
            gate.wait(WAIT)
            return super().on_message(message, sender)

    waiting, refusing = Slow(), Slow()
    lanes = LanePolicy(1, "block"), LanePolicy(1)
    for name, slow, lane in zip("wr", (waiting, refusing), lanes, strict=True):
        entered.clear()
        system.spawn(name, behaviour=slow, prompt_lane=lane).deliver(0)
        assert entered.wait(WAIT)

    async def fill(me: AgentBehaviour) -> list[bool]:
        sent = [me.send("w", number) for number in (1, 2, 3)]
        await me.send("r", 1)
        with pytest.raises(MailboxFull):
            await me.send("r", 2)
        return [future.done for future in sent]

    assert run(system, fill) == [True, False, False]
    gate.set()
    assert system.wait_idle(WAIT)
    assert [message for message, _ in waiting.seen] == [0, 1, 2, 3]
    assert [message for message, _ in refusing.seen] == [0, 1]
    assert [letter.receiver for letter in system.dead_letters()] == ["r"]


def test_stopping_the_system_ends_behaviours_in_the_middle(open_system: OpenSystem) -> None:
    system = open_system(store=False)
    never = threading.Event()

    async def wait(me: AgentBehaviour) -> None:
        me.later(3600, "never")
        never.set()
        await me.ask("does", None, timeout=3600)  # Itself, which is busy.

    waiting = system.spawn("does", behaviour=Does()).request(wait)
    assert never.wait(WAIT)
    queued = system.spawn("does").request(wait)

    system.stop()

    for future in (waiting, queued):
        with pytest.raises((SystemStopped, Undelivered)):
            future.get(timeout=WAIT)
    with pytest.raises(SystemStopped):
        system.spawn("does").deliver("late")


@pytest.mark.parametrize("seconds", [-1, "soon", float("inf"), True])
def test_times_that_cannot_be_are_refused(system: AgentSystem, seconds: Any) -> None:
    def later(me: AgentBehaviour) -> None:
        me.later(seconds, None)

    agent = system.spawn(f"a{seconds}", behaviour=DoesAtOnce())
    with pytest.raises(InvalidInput):
        agent.request(later).get(timeout=WAIT)


def test_a_behaviour_belongs_to_one_agent(system: AgentSystem) -> None:
    behaviour = Recorder()
    system.spawn("a", behaviour=behaviour)

    with pytest.raises(InvalidInput, match="behaviour of 'a' already"):
        system.spawn("b", behaviour=behaviour)
    with pytest.raises(InvalidInput, match="has a behaviour"):
        system.spawn("a", behaviour=Recorder())


def test_what_was_answered_is_not_kept_until_its_time_limit(system: AgentSystem) -> None:
    class Letter:
        """What is sent and answered."""

    class Echo(AgentBehaviour):
        def on_message(self, message: Letter, sender: Agent | None) -> Letter:
            return Letter()

    echo = system.spawn("echo", behaviour=Echo())

    def asked() -> list[weakref.ref[Letter]]:
        sent = Letter()
        return [weakref.ref(sent), weakref.ref(echo.request(sent, timeout=600).get(timeout=WAIT))]

    letters = [letter for _ in range(20) for letter in asked()]
    assert system.wait_idle(WAIT)
    gc.collect()

    assert sum(letter() is not None for letter in letters) <= 2  # the thread's last one


def test_no_deadline_is_left_of_what_was_answered_or_was_let_in(system: AgentSystem) -> None:
    def left() -> int:
        gc.collect()
        return sum(type(one) is Deadline and not one.cancelled for one in gc.get_objects())

    gate, entered = threading.Event(), threading.Event()

    def hold(_: AgentBehaviour) -> None:
        entered.set()
        gate.wait(WAIT)

    class Blocks(DoesAtOnce):
        blocking = True

    one = LanePolicy(1, "block", timeout=86_400)
    full = system.spawn("full", behaviour=Blocks(), prompt_lane=one)
    echo = system.spawn("echo", behaviour=Recorder())
    before = left()
    echo.request("hello", timeout=86_400).get(timeout=WAIT)
    system.spawn("model").ask([1], sampling=SHORT, timeout=86_400).get(timeout=WAIT)
    full.deliver(hold)
    assert entered.wait(WAIT)
    waits = [full.deliver(lambda _: None) for _ in range(3)]
    assert left() == before + 2
    gate.set()

    assert system.wait_idle(WAIT)
    assert all(waiting.done for waiting in waits)
    assert left() == before


@pytest.mark.parametrize(
    "plan",
    [
        lambda me, message: me.later(86_400, message).cancel(),
        lambda me, message: me.every(86_400, message).cancel(),
        lambda me, message: (me.later(86_400, message), me.every(86_400, message), me.stop()),
    ],
    ids=["later", "every", "ended"],
)
def test_what_is_not_sent_any_more_is_not_kept_until_it_would_have_been(
    system: AgentSystem, plan: Callable[[AgentBehaviour, object], object]
) -> None:
    class Message:
        pass

    def begin(me: AgentBehaviour) -> "weakref.ref[Message]":
        message = Message()
        plan(me, message)
        return weakref.ref(message)

    kept = system.spawn("plans", behaviour=DoesAtOnce()).request(begin).get(timeout=WAIT)
    assert system.wait_idle(WAIT)

    gc.collect()
    assert kept() is None
