"""Behaviours: agents that think about messages, send, ask, wait and spawn."""

import threading
from dataclasses import dataclass
from typing import Any

import pytest
from behaviours import Does, DoesAtOnce, Recorder, run
from makers import OpenSystem

from kvactors.actors import (
    Agent,
    AgentBehaviour,
    AgentSystem,
    Sampling,
    TurnTimeout,
    Undelivered,
)
from kvactors.core.testing.models import Faulty, PlainTokenizer, tiny_model

SHORT = Sampling(max_tokens=4)
WAIT = 60


@dataclass(frozen=True)
class Offer:
    price: int


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
            self.first, self.second = threading.Event(), threading.Event()

        async def on_message(self, message: int, sender: Agent | None) -> list[int]:
            self.begun.append(message)
            (self.second if self.first.is_set() else self.first).set()
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
    there = single.first.wait(WAIT) and many.second.wait(WAIT)
    begun = list(single.begun)
    gate.set()

    assert there
    assert begun == [1]
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
