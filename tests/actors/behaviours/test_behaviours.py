"""Behaviours: agents that act on messages, one at a time, without holding a thread."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

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
from kvactors.core.testing.models import Faulty, PlainTokenizer, tiny_model

OpenSystem = Callable[..., AgentSystem]
SHORT = Sampling(max_tokens=4)
WAIT = 60


@dataclass(frozen=True)
class Offer:
    price: int


class Recorder(AgentBehaviour):
    """Keeps what it gets, and from whom; answers with how much that is."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, str | None]] = []

    def on_message(self, message: Any, sender: Agent | None) -> int:
        self.seen.append((message, sender.agent_id if sender else None))
        return len(self.seen)


class Does(AgentBehaviour):
    """Runs whatever function it is sent, with itself."""

    async def on_message(self, message: Any, sender: Agent | None) -> Any:
        return await message(self)


class DoesAtOnce(AgentBehaviour):
    def on_message(self, message: Any, sender: Agent | None) -> Any:
        return message(self)


@pytest.fixture
def system(open_system: OpenSystem) -> AgentSystem:
    return open_system(store=False)


def run(system: AgentSystem, function: Any, name: str = "does") -> Any:
    """Run a function inside a behaviour; its result."""
    agent = system.find(name) or system.spawn(name, behaviour=Does())
    return agent.request(function).get(timeout=WAIT)


def test_an_agent_thinks_about_a_message_and_answers_its_sender(system: AgentSystem) -> None:
    class Buyer(AgentBehaviour):
        async def on_message(self, message: Offer, sender: Agent | None) -> None:
            assert sender is not None
            reply = await self.think(
                f"{sender.agent_id} offers {message.price}. Accept?", choices=["yes", "no"]
            )
            await self.send(sender, (reply.text, self.agent_id))

    class Seller(Recorder):
        def on_message(self, message: Any, sender: Agent | None) -> Any:
            if isinstance(message, Offer):
                return self.send("bob", message)
            return super().on_message(message, sender)

    seller = Seller()
    bob = system.spawn("bob", behaviour=Buyer())
    system.spawn("ann", behaviour=seller).deliver(Offer(5))
    assert system.wait_idle(WAIT)

    [((text, name), sender)] = seller.seen
    assert (text in ("yes", "no"), name, sender) == (True, "bob", "bob")
    assert "ann offers 5. Accept?" in bob.transcript().text


def test_messages_arrive_in_the_order_of_each_sender(system: AgentSystem) -> None:
    recorder = Recorder()
    system.spawn("sink", behaviour=recorder)

    class Source(AgentBehaviour):
        async def on_message(self, message: int, sender: Agent | None) -> None:
            for number in range(message):
                await self.send("sink", number)

    for index in range(4):
        system.spawn(f"source {index}", behaviour=Source()).deliver(100)
    assert system.wait_idle(WAIT)

    for index in range(4):
        own = [number for number, sender in recorder.seen if sender == f"source {index}"]
        assert own == list(range(100))


def test_one_message_at_a_time_unless_reentrant(open_system: OpenSystem) -> None:
    model = Faulty(tiny_model(seed=3))

    def held() -> tuple[Any, PlainTokenizer]:
        return model, PlainTokenizer()

    class Thinks(AgentBehaviour):
        def __init__(self) -> None:
            self.begun: list[int] = []
            self.both = threading.Event()

        async def on_message(self, message: int, sender: Agent | None) -> list[int]:
            self.begun.append(message)
            if len(self.begun) == 2:
                self.both.set()
            await self.think([1, message], sampling=SHORT)
            return list(self.begun)

    class Reentrant(Thinks):
        reentrant = True

    system = open_system(held, store=False)
    single, many = Thinks(), Reentrant()
    one, other = system.spawn("a", behaviour=single), system.spawn("b", behaviour=many)
    gate = threading.Event()
    model.arm(hold=gate)

    answers = [agent.request(number) for agent in (one, other) for number in (1, 2)]
    assert many.both.wait(WAIT)
    assert single.begun == [1]
    gate.set()

    assert [answer.get(timeout=WAIT) for answer in answers] == [[1], [1, 2], [1, 2], [1, 2]]


def test_while_behaviours_think_their_threads_serve_others(open_system: OpenSystem) -> None:
    model = Faulty(tiny_model(seed=3))

    def held() -> tuple[Any, PlainTokenizer]:
        return model, PlainTokenizer()

    class Thinks(AgentBehaviour):
        async def on_message(self, message: Any, sender: Agent | None) -> str:
            return (await self.think([1, 2], sampling=SHORT)).finish_reason

    system = open_system(held, store=False)
    gate = threading.Event()
    model.arm(hold=gate)
    thinking = [system.spawn(f"{n}", behaviour=Thinks()).request(None) for n in range(8)]
    assert model.reached.wait(WAIT)

    assert system.spawn("free", behaviour=Recorder()).request("hello").get(timeout=WAIT) == 1
    assert not any(future.done for future in thinking)
    gate.set()

    assert {future.get(timeout=WAIT) for future in thinking} == {"length"}


def test_asking_another_agent_gives_what_it_returns_or_raises(system: AgentSystem) -> None:
    system.spawn("counter", behaviour=Recorder())
    system.spawn("broken", behaviour=DoesAtOnce())
    system.spawn("plain")

    async def ask(me: AgentBehaviour) -> list[Any]:
        first = await me.ask("counter", "x")
        with pytest.raises(TypeError):
            await me.ask("broken", "not callable")
        with pytest.raises(Undelivered):
            await me.ask("nobody", "x")
        with pytest.raises(Undelivered):
            await me.ask("plain", Offer(1))
        reply = await me.ask("plain", "text is a turn")
        return [first, await me.ask("counter", "y"), reply.usage.generated_tokens > 0]

    assert run(system, ask) == [1, 2, True]
    letters = [(letter.receiver, letter.sender) for letter in system.dead_letters()]
    assert letters == [("nobody", "does"), ("plain", "does")]


def test_an_answer_that_takes_too_long_is_a_timeout(system: AgentSystem) -> None:
    async def wait(me: AgentBehaviour) -> None:
        await me.ask("does", None, timeout=0.01)  # Itself, which is busy.

    with pytest.raises(TurnTimeout):
        run(system, wait)


def test_broadcast_and_topics_reach_whom_they_should(system: AgentSystem) -> None:
    recorders = {name: Recorder() for name in "abc"}
    for name, recorder in recorders.items():
        system.spawn(name, behaviour=recorder)

    async def act(me: AgentBehaviour) -> None:
        await me.broadcast("all")
        await me.broadcast("two", to=["a", "b"])
        me.subscribe("news")
        await me.publish("news", "not to myself")

    async def follow(me: AgentBehaviour) -> None:
        me.subscribe("news")

    run(system, act)
    reader = Does()
    system.spawn("reader", behaviour=reader).request(follow).get(timeout=WAIT)
    called = threading.Event()

    async def heard(me: AgentBehaviour) -> None:
        called.set()

    system.publish("news", heard).get(timeout=WAIT)
    assert called.wait(WAIT)
    assert system.wait_idle(WAIT)
    assert [recorders[name].seen for name in "abc"] == [
        [("all", "does"), ("two", "does")],
        [("all", "does"), ("two", "does")],
        [("all", "does")],
    ]


def test_wait_idle_waits_for_later_and_not_for_every(system: AgentSystem) -> None:
    recorder = Recorder()
    agent = system.spawn("a", behaviour=recorder)
    ticks = threading.Semaphore(0)

    class Ticking(AgentBehaviour):
        def on_message(self, message: Any, sender: Agent | None) -> None:
            if message == "start":
                self.every(0.001, "tick")
                return
            ticks.release()

    system.spawn("clock", behaviour=Ticking()).deliver("start")
    for _ in range(3):
        assert ticks.acquire(timeout=WAIT)

    async def schedule(me: AgentBehaviour) -> None:
        me.later(3600, "cancelled").cancel()
        me.later(0.05, agent.agent_id)

    class Later(AgentBehaviour):
        async def on_message(self, message: Any, sender: Agent | None) -> None:
            if callable(message):
                await message(self)
            else:
                await self.send(message, "late")

    system.spawn("late", behaviour=Later()).request(schedule).get(timeout=WAIT)
    assert system.wait_idle(WAIT)
    assert recorder.seen == [("late", "late")]


def test_a_behaviour_spawns_remembers_forgets_and_stops(system: AgentSystem) -> None:
    async def live(me: AgentBehaviour) -> Any:
        await me.observe("Something happened.")
        before = me.agent.transcript().text
        await me.rewind()
        child = await me.spawn("child", behaviour=Recorder())
        answer = await me.ask(child, "hello")
        me.stop(child)
        me.stop()
        return before, me.agent.transcript().text, answer

    ended, mother = system.spawn("mother", behaviour=Does()), system.find("mother")
    assert mother is not None

    result = mother.request(live).get(timeout=WAIT)

    assert result == ("Something happened.", "", 1)
    for name in ("mother", "child"):
        assert system.watch(name).get(timeout=WAIT).cause is None
    assert ended.ask("Still there?", sampling=SHORT).get(timeout=WAIT).token_ids


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


def test_a_behaviour_that_awaits_something_of_asyncio_is_told_so(system: AgentSystem) -> None:
    async def sleep(me: AgentBehaviour) -> None:
        await asyncio.sleep(0)

    with pytest.raises(TypeError, match="nothing of asyncio"):
        run(system, sleep)


def test_blocking_work_runs_elsewhere(system: AgentSystem) -> None:
    async def work(me: AgentBehaviour) -> str:
        return await me.run_blocking(lambda: threading.current_thread().name)  # type: ignore[no-any-return]

    assert run(system, work).startswith("kvactors-blocking")


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


# -- asyncio ---------------------------------------------------------------------------


def test_asyncio_users_await_turns_and_streams(system: AgentSystem) -> None:
    agent = system.spawn("a")

    async def main() -> tuple[str, str]:
        replies = await asyncio.gather(*(agent.ask_async([n], sampling=SHORT) for n in range(1, 4)))
        assert len(replies) == 3
        text = ""
        async for piece in agent.stream_async([9], sampling=SHORT):
            text += piece.text
        return text, (await agent.ask([10], sampling=SHORT)).finish_reason

    text, finish = asyncio.run(main())

    assert finish == "length"
    assert agent.transcript().turns[-3].text == text


def test_cancelling_a_task_cancels_its_turn(system: AgentSystem) -> None:
    agent = system.spawn("a")
    endless = Sampling(max_tokens=5000)

    async def main() -> None:
        stream = agent.stream_async([1], sampling=endless)
        await anext(stream)
        task = asyncio.create_task(agent.ask_async([2], sampling=endless))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await stream.aclose()

    asyncio.run(main())

    assert system.wait_idle(WAIT)
    assert [turn.finish for turn in agent.transcript().turns] == [None, "cancelled"]
