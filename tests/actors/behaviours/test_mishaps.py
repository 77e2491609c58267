"""What may go wrong between agents: each of these was found broken once, or could be."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pykka
import pytest

from kvactors.actors import (
    Agent,
    AgentBehaviour,
    AgentSystem,
    BehaviourFailed,
    InvalidInput,
    LanePolicy,
    Sampling,
    Supervision,
    SystemStopped,
    TurnTimeout,
    replay,
)
from kvactors.actors.agents.actor import AgentActor
from kvactors.actors.runtime.dispatcher import Dispatcher, PooledActor, SystemActor
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.testing import use_actors
from kvactors.actors.turns.messages_agent import Prefetch
from kvactors.core.errors import BlockingCall, InvalidConfig
from kvactors.core.testing.models import Faulty, PlainTokenizer, tiny_model

OpenSystem = Callable[..., AgentSystem]
SHORT = Sampling(max_tokens=4)
WAIT = 60


class Does(AgentBehaviour):
    """Runs whatever function it is sent, with itself."""

    async def on_message(self, message: Any, sender: Agent | None) -> Any:
        return await message(self)


class DoesMuch(Does):
    reentrant = True


class Echo(AgentBehaviour):
    def on_message(self, message: Any, sender: Agent | None) -> Any:
        if isinstance(message, BaseException):
            raise message
        return message


@pytest.fixture
def system(open_system: OpenSystem) -> AgentSystem:
    return open_system(store=False)


@pytest.fixture
def held(open_system: OpenSystem) -> tuple[AgentSystem, Faulty]:
    """A system, and its model, whose steps can be held."""
    model = Faulty(tiny_model(seed=3))
    return open_system(lambda: (model, PlainTokenizer()), store=False), model


# -- futures and threads ---------------------------------------------------------------


def test_a_callback_that_raises_harms_nobody(
    system: AgentSystem, caplog: pytest.LogCaptureFixture
) -> None:
    alice = system.spawn("alice")

    def raises(_: Any) -> None:
        raise SystemExit("mine")

    future = alice.ask([1], sampling=SHORT)
    future.on_done(raises)

    assert future.get(timeout=WAIT).token_ids
    assert alice.ask([2], sampling=SHORT).get(timeout=WAIT).token_ids
    assert "a callback of a future raised" in caplog.text


def test_an_answer_to_a_future_that_somebody_settled_ends_no_thread() -> None:
    one = Dispatcher("one", 1)
    gate = threading.Event()

    class Answers(PooledActor):
        dispatcher = one

        def on_receive(self, message: Any) -> Any:
            gate.wait(WAIT)
            if message == "raise":
                raise ValueError(message)
            return message

    ref = Answers.start()
    impatient: list[Any] = [ref.ask(word, block=False) for word in ("return", "raise")]
    for future in impatient:
        assert future.resolve("too late")
    gate.set()

    assert ref.ask("alive", timeout=WAIT) == "alive"
    ref.stop()
    one.close(WAIT)


def test_a_strangers_future_is_no_way_to_block_a_pool_thread() -> None:
    one, never = Dispatcher("one", 1), pykka.ThreadingFuture[int]()

    class Waits(SystemActor):
        dispatcher = one

        def on_receive(self, message: Any) -> Any:
            return message.get(timeout=WAIT) if isinstance(message, ReplyFuture) else never

    nested: Any = Waits.start().ask(None, block=False)
    blocked = Waits.start().ask(nested, block=False)

    with pytest.raises(BlockingCall):
        blocked.get(timeout=WAIT)
    never.set(5)
    assert nested.get(timeout=WAIT) == 5
    one.close(WAIT)


def test_a_behaviour_may_answer_with_the_future_of_a_stranger(system: AgentSystem) -> None:
    foreign = pykka.ThreadingFuture[str]()
    echo = system.spawn("echo", behaviour=Echo())

    answer = echo.request(foreign)
    assert echo.request("not held up").get(timeout=WAIT) == "not held up"
    foreign.set("value")

    assert answer.get(timeout=WAIT) == "value"


def test_nobody_waits_for_the_end_of_what_it_is_part_of(system: AgentSystem) -> None:
    class Waits(AgentBehaviour):
        blocking = True

        def on_message(self, message: Any, sender: Agent | None) -> Any:
            return message()

    class Helped(AgentBehaviour):
        async def on_message(self, message: Any, sender: Agent | None) -> Any:
            return await self.run_blocking(message)

    again = Supervision("restart", backoff=0)
    for behaviour in (Waits(), Helped()):
        agent = system.spawn(type(behaviour).__name__, behaviour=behaviour, supervision=again)
        for wait in (system.wait_idle, system.stop):
            with pytest.raises(BlockingCall, match="never ends"):
                agent.request(wait).get(timeout=WAIT)


def test_dead_letters_are_the_latest_thousand(system: AgentSystem) -> None:
    for number in range(1001):
        system.parts.router.post("nobody", number, None)

    assert [letter.message for letter in system.dead_letters()] == list(range(1, 1001))


# -- asks ------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [SystemExit(3), GeneratorExit(), KeyboardInterrupt()])
def test_whoever_leaves_ends_alone_and_its_asker_gets_an_error(
    system: AgentSystem, left: BaseException
) -> None:
    system.spawn("echo", behaviour=Echo())
    asks = system.spawn("asks", behaviour=Does())

    async def ask(me: AgentBehaviour) -> str:
        try:
            await me.ask("echo", left)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "no error"

    name = type(left).__name__
    assert asks.request(ask).get(timeout=WAIT).startswith(f"BehaviourFailed: 'echo' raised {name}")


def test_asking_oneself_for_ever_is_refused(system: AgentSystem) -> None:
    single, many = (
        system.spawn("one", behaviour=Does()),
        system.spawn("many", behaviour=DoesMuch()),
    )

    async def seven(_: AgentBehaviour) -> int:
        return 7

    async def ask(me: AgentBehaviour, timeout: float | None = None) -> Any:
        return await me.ask(me.agent, seven, timeout=timeout)

    with pytest.raises(InvalidInput, match="its own answer"):
        single.request(ask).get(timeout=WAIT)
    assert many.request(ask).get(timeout=WAIT) == 7


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1, 0, "1", 10**400])
def test_an_ask_waits_for_no_time_that_cannot_be(system: AgentSystem, seconds: Any) -> None:
    system.spawn("echo", behaviour=Echo())
    asks = system.spawn("asks", behaviour=Does(), supervision=Supervision("restart", backoff=0))

    async def ask(me: AgentBehaviour) -> Any:
        return await me.ask("echo", 1, timeout=seconds)

    with pytest.raises(InvalidInput, match="finite"):
        asks.request(ask).get(timeout=WAIT)
    assert system.wait_idle(WAIT)


def test_a_moment_beyond_all_numbers_is_refused_and_not_waited_for(system: AgentSystem) -> None:
    does = system.spawn("does", behaviour=Does())

    async def later(me: AgentBehaviour) -> None:
        me.later(10**400, "never")

    with pytest.raises(InvalidInput, match="finite"):
        does.request(later).get(timeout=WAIT)
    assert system.wait_idle(WAIT)


def test_a_lane_cannot_wait_longer_than_a_thread_can() -> None:
    for seconds in (float("inf"), float("nan"), 1e300):
        with pytest.raises(InvalidConfig, match="finite"):
            LanePolicy(timeout=seconds)


# -- ends ------------------------------------------------------------------------------


def test_a_reentrant_behaviour_handles_nothing_before_it_has_started(
    held: tuple[AgentSystem, Faulty],
) -> None:
    system, model = held
    events: list[str] = []

    class Slow(AgentBehaviour):
        reentrant = True

        async def on_start(self) -> None:
            await self.think([1], sampling=SHORT)
            events.append("started")

        async def on_message(self, message: Any, sender: Agent | None) -> None:
            events.append(message)

    gate = threading.Event()
    model.arm(hold=gate)
    slow = system.spawn("slow", behaviour=Slow())
    slow.deliver("message").get(timeout=WAIT)
    assert model.reached.wait(WAIT)
    gate.set()

    assert system.wait_idle(WAIT)
    assert events == ["started", "message"]


def test_a_reentrant_behaviour_that_is_told_to_stop_begins_nothing_more(
    held: tuple[AgentSystem, Faulty],
) -> None:
    system, model = held
    begun: list[str] = []

    class Thinks(AgentBehaviour):
        reentrant = True

        async def on_message(self, message: Any, sender: Agent | None) -> str:
            begun.append(message)
            await self.think([1], sampling=SHORT)
            return "thought"

    gate = threading.Event()
    model.arm(hold=gate)
    thinks = system.spawn("thinks", behaviour=Thinks())
    first = thinks.request("first")
    assert model.reached.wait(WAIT)
    system.parts.behaviours.stop("thinks")
    second = thinks.request("second")
    gate.set()

    assert first.get(timeout=WAIT) == "thought"
    with pytest.raises(Exception, match="no behaviour"):
        second.get(timeout=WAIT)
    assert begun == ["first"]


def test_whoever_watches_too_late_is_told_the_cause_too(system: AgentSystem) -> None:
    failure = ValueError("mine")
    echo = system.spawn("echo", behaviour=Echo())
    with pytest.raises(ValueError, match="mine"):
        echo.request(failure).get(timeout=WAIT)
    assert system.wait_idle(WAIT)

    assert system.watch("echo").get(timeout=WAIT).cause is failure
    assert system.watch("nobody").get(timeout=WAIT).cause is None
    system.spawn("echo", behaviour=Echo())
    system.parts.behaviours.stop("echo")
    assert system.watch("echo").get(timeout=WAIT).cause is None


def test_a_child_that_escalates_to_a_parent_that_has_stopped_leaves_nothing_behind(
    system: AgentSystem,
) -> None:
    gate, entered = threading.Event(), threading.Event()

    class Parent(AgentBehaviour):
        blocking = True

        def on_message(self, message: Any, sender: Agent | None) -> None:
            entered.set()
            gate.wait(WAIT)

    parent = system.spawn("parent", behaviour=Parent())
    child = system.spawn(
        "child", behaviour=Echo(), supervision=Supervision("escalate"), parent="parent"
    )
    parent.deliver("hold")
    assert entered.wait(WAIT)
    # The parent stops after its message, and the child's error comes behind that.
    system.parts.behaviours.stop("parent")
    with pytest.raises(ValueError, match="mine"):
        child.request(ValueError("mine")).get(timeout=WAIT)
    gate.set()

    assert system.wait_idle(WAIT)


def test_what_an_agent_said_while_it_was_stopped_does_not_wait_for_the_disk(
    open_system: OpenSystem,
) -> None:
    step, busy, entered = threading.Event(), threading.Event(), threading.Event()

    class Busy(AgentActor):
        def on_receive(self, message: Any) -> None:
            if isinstance(message, Prefetch):
                entered.set()
                busy.wait(WAIT)
            super().on_receive(message)

    model = Faulty(tiny_model(seed=3))
    system = open_system(
        lambda: (model, PlainTokenizer()),
        model_name="held",
        prepare=partial(use_actors, agent=Busy),
    )
    alice = system.spawn("alice")
    model.arm(hold=step)
    future = alice.ask([1] * 300, sampling=Sampling(max_tokens=2))
    assert model.reached.wait(WAIT)
    system.prefetch("alice")
    assert entered.wait(WAIT)
    actor = system.parts.agents.actor("alice")
    assert actor is not None
    stopped = actor.actor_ref.stop(block=False)
    step.set()
    while not system.stats()["backlog_bytes"]:
        pass  # The end of the turn comes behind the stop.
    busy.set()

    assert stopped.get(timeout=WAIT)
    with pytest.raises(SystemStopped):
        future.get(timeout=WAIT)
    system.forget("alice")
    assert system.wait_idle(WAIT)
    system.check()
    assert system.stats()["backlog_bytes"] == 0


def test_a_restart_fails_what_else_a_reentrant_behaviour_was_doing(
    held: tuple[AgentSystem, Faulty],
) -> None:
    system, model = held
    does = system.spawn("does", behaviour=DoesMuch(), supervision=Supervision("restart", backoff=0))
    gate = threading.Event()
    model.arm(hold=gate)

    async def think(me: AgentBehaviour) -> None:
        await me.think([1], sampling=SHORT)

    async def fail(_: AgentBehaviour) -> None:
        raise ValueError("mine")

    thinking = does.request(think)
    assert model.reached.wait(WAIT)
    with pytest.raises(ValueError, match="mine"):
        does.request(fail).get(timeout=WAIT)

    with pytest.raises(BehaviourFailed, match="restarted"):
        thinking.get(timeout=WAIT)
    gate.set()
    assert system.wait_idle(WAIT)


# -- journals --------------------------------------------------------------------------


def test_a_replay_knows_what_was_observed_what_failed_and_what_a_timer_sent(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    class Careful(AgentBehaviour):
        async def on_message(self, message: Any, sender: Agent | None) -> None:
            if message == "begin":
                await self.observe("noted")
                child = await self.spawn("child")
                self.later(0.001, child.agent_id)
                return
            try:
                await self.ask("nobody", "hello?")
            except Exception as error:
                await self.send("echo", f"{type(error).__name__}")
            try:
                await self.think([1] * 50, timeout=1e-9)
            except TurnTimeout:
                await self.send("echo", (await self.think([2], sampling=SHORT)).text)

    journal = tmp_path / "journal"
    system = open_system(store=False, journal=journal)
    system.spawn("echo", behaviour=Echo())
    system.spawn("careful", behaviour=Careful()).deliver("begin")
    assert system.wait_idle(WAIT)
    system.stop()

    for model in (None, open_system(store=False)):
        again = replay(journal, {"careful": Careful()}, system=model)
        assert (again.messages, again.turns, again.differences) == (2, 3, ())
