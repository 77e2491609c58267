"""What may go wrong between agents: each of these was found broken once, or could be."""

import threading
from pathlib import Path
from typing import Any

import pykka
import pytest
from behaviours import Does, DoesMuch, Echo
from makers import OpenSystem

from kvactors.actors import (
    Agent,
    AgentBehaviour,
    AgentSystem,
    InvalidInput,
    LanePolicy,
    RewindOutOfRange,
    Sampling,
    Supervision,
    TurnTimeout,
    replay,
)
from kvactors.actors.runtime.dispatcher import Dispatcher, PooledActor, SystemActor
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.core.errors import BlockingCall, InvalidConfig

SHORT = Sampling(max_tokens=4)
WAIT = 60


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


# -- journals --------------------------------------------------------------------------


def test_a_journal_is_read_by_nobody_but_its_owner(open_system: OpenSystem, tmp_path: Path) -> None:
    open_system(store=False, journal=tmp_path / "journal")

    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o600


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


class Forgetful(AgentBehaviour):
    """Takes back so many turns, of the two that it knows, and says what came of it."""

    def __init__(self, turns: int) -> None:
        self.turns = turns

    async def on_message(self, message: Any, sender: Agent | None) -> str:
        await self.think([1, 2], sampling=SHORT)
        seen = await self.observe("noted")
        try:
            left = await self.rewind(self.turns)
        except RewindOutOfRange as error:
            said = str(error)
        else:
            said = f"{seen.finish_reason}, {left.turns} turns, {left.tokens} tokens"
        await self.send("echo", said)
        return said


@pytest.mark.parametrize("turns", [1, 5])
def test_a_replay_gives_back_what_was_left_or_why_nothing_was_taken_back(
    open_system: OpenSystem, tmp_path: Path, turns: int
) -> None:
    journal = tmp_path / "journal"
    system = open_system(store=False, journal=journal)
    system.spawn("echo", behaviour=Echo())
    agent = system.spawn("forgetful", behaviour=Forgetful(turns))
    said = agent.request("go").get(timeout=WAIT)
    assert system.wait_idle(WAIT)
    system.stop()

    for model in (None, open_system(store=False)):
        again = replay(journal, {"forgetful": Forgetful(turns)}, system=model)
        assert (again.turns, again.differences) == (2, ()), said


def test_a_rewind_that_fails_only_in_the_replay_fails_where_it_is_awaited(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    system = open_system(store=False, journal=journal)
    system.spawn("forgetful", behaviour=Forgetful(1)).request("go").get(timeout=WAIT)
    system.stop()

    again = replay(journal, {"forgetful": Forgetful(5)}, system=open_system(store=False))

    [difference] = again.differences
    assert "message 1" in difference
