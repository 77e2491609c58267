"""What becomes of behaviours that raise, and who is told."""

import threading
from typing import Any

import pytest

from kvactors.actors import (
    Agent,
    AgentBehaviour,
    AgentSystem,
    BehaviourFailed,
    DeadLetter,
    Sampling,
    Supervision,
    Terminated,
)
from kvactors.actors.runtime.supervision import Restarts
from kvactors.core.errors import ContextExceeded, InvalidConfig

SHORT = Sampling(max_tokens=4)
WAIT = 60
RESTART = Supervision("restart", backoff=0)


class Fragile(AgentBehaviour):
    """Counts what it gets since it was made; raises what is an exception."""

    def __init__(self) -> None:
        self.seen = 0

    async def on_message(self, message: Any, sender: Agent | None) -> int:
        self.seen += 1
        if message == "think and fail":
            await self.think([1, 2], sampling=SHORT)
            raise ValueError("after a turn")
        if isinstance(message, BaseException):
            raise message
        return self.seen


class Watcher(AgentBehaviour):
    """Watches whom it is told to watch; keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.told = threading.Event()

    def on_message(self, message: Any, sender: Agent | None) -> None:
        if isinstance(message, str):
            self.watch(message)
        else:
            self.heard.append(message)
            self.told.set()


def fail(agent: Agent, error: Any) -> None:
    own = type(error) if isinstance(error, Exception) else ValueError
    with pytest.raises(BehaviourFailed if isinstance(error, SystemExit) else own):
        agent.request(error).get(timeout=WAIT)


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(1)])
def test_a_behaviour_that_raises_is_made_anew_and_keeps_its_memory(
    system: AgentSystem, error: BaseException
) -> None:
    agent = system.spawn("a", behaviour=Fragile, supervision=RESTART)
    agent.ask([5], sampling=SHORT).get(timeout=WAIT)
    assert agent.request("x").get(timeout=WAIT) == 1
    bystander = system.spawn("b", behaviour=Fragile())

    fail(agent, error)

    assert agent.request("x").get(timeout=WAIT) == 1
    assert agent.request("x").get(timeout=WAIT) == 2
    assert len(agent.transcript().turns) == 2
    assert bystander.request("x").get(timeout=WAIT) == 1


@pytest.mark.parametrize(("policy", "turns"), [("restart", 4), ("rewind", 2)])
def test_a_restart_can_forget_the_turn_of_the_failed_message(
    system: AgentSystem, policy: Any, turns: int
) -> None:
    supervision = Supervision(policy, backoff=0)
    agent = system.spawn("a", behaviour=Fragile, supervision=supervision)
    agent.ask([5], sampling=SHORT).get(timeout=WAIT)

    fail(agent, "think and fail")
    fail(agent, ValueError("without a turn"))

    assert agent.request("x").get(timeout=WAIT) == 1
    assert len(agent.transcript().turns) == turns


class Remembering(AgentBehaviour):
    """Takes a turn of these tokens, then fails as it is told, before and after further ones."""

    async def on_message(self, message: str, sender: Agent | None) -> None:
        if message == "too long":
            await self.think([1], sampling=Sampling(max_tokens=10**6))
        await self.think([7, 7], sampling=SHORT)
        if message == "finish":
            return
        await self.observe("seen")
        if message == "hurry":
            self.think([8], sampling=SHORT)
        if message == "others":
            await self.agent.ask([5], sampling=SHORT)
            await self.think([8], sampling=SHORT)
        if message == "child":
            await self.spawn("b", behaviour=Fragile(), supervision=Supervision("escalate"))
            await self.ask("b", ValueError("child's"))
        raise ValueError(message)


@pytest.mark.parametrize(
    ("failing", "kept"),
    [("too long", 0), ("twice", 0), ("hurry", 0), ("child", 0), ("others", 5)],
)
def test_a_restart_forgets_the_turns_of_the_failed_message_and_nobody_elses(
    system: AgentSystem, failing: str, kept: int
) -> None:
    supervision = Supervision("rewind", backoff=0)
    agent = system.spawn("a", behaviour=Remembering, supervision=supervision)
    agent.request("finish").get(timeout=WAIT)
    before = agent.transcript().turns

    with pytest.raises((ContextExceeded, ValueError, BehaviourFailed)):
        agent.request(failing).get(timeout=WAIT)
    assert system.wait_idle(WAIT)

    # What somebody else asked for stays, with what it came after.
    after = agent.transcript().turns
    assert after[: len(before)] == before
    assert len(after) - len(before) == kept


def test_an_answer_given_again_is_not_forgotten_with_the_message_that_asked_again(
    system: AgentSystem,
) -> None:
    class Asking(AgentBehaviour):
        async def on_message(self, message: str, sender: Agent | None) -> None:
            await self.think([7, 7], sampling=SHORT, request_id="once")
            if message == "fail":
                raise ValueError(message)

    supervision = Supervision("rewind", backoff=0)
    agent = system.spawn("a", behaviour=Asking, supervision=supervision)
    agent.request("finish").get(timeout=WAIT)

    fail(agent, "fail")
    assert system.wait_idle(WAIT)

    assert len(agent.transcript().turns) == 2


def test_messages_wait_while_a_behaviour_restarts(system: AgentSystem) -> None:
    agent = system.spawn("a", behaviour=Fragile, supervision=Supervision("restart", backoff=0.05))

    failing, *others = [agent.request(m) for m in (ValueError("first"), "x", "y")]

    with pytest.raises(ValueError, match="first"):
        failing.get(timeout=WAIT)
    assert [other.get(timeout=WAIT) for other in others] == [1, 2]
    assert system.wait_idle(WAIT)


def test_too_many_failures_end_a_behaviour_and_the_log_says_so(
    system: AgentSystem, caplog: pytest.LogCaptureFixture
) -> None:
    supervision = Supervision("restart", backoff=0, most=2)
    agent = system.spawn("a", behaviour=Fragile, supervision=supervision)
    ended = system.watch(agent)

    for number in range(3):
        fail(agent, ValueError(number))

    terminated = ended.get(timeout=WAIT)
    assert (terminated.agent_id, str(terminated.cause)) == ("a", "2")
    assert agent.ask([1], sampling=SHORT).get(timeout=WAIT).token_ids
    for _ in range(2):
        agent.deliver("late").get(timeout=WAIT)
    then = ["it goes on in 0 s (1 of 2)", "it goes on in 0 s (2 of 2)", "it has ended"]
    said = [f"the behaviour of 'a' raised; {words}" for words in then]
    assert caplog.messages == [*said, "dead letter to 'a': the behaviour of 'a' has ended"]


@pytest.mark.parametrize(("raises", "faults"), [(1, 2), (9, 4)])
def test_what_cannot_be_made_anew_is_one_more_failure(
    system: AgentSystem, raises: int, faults: int
) -> None:
    makes: Any = iter([Fragile, *[lambda: 1 / 0] * raises, Fragile])
    supervision = Supervision("restart", backoff=0, most=3)
    agent = system.spawn("a", behaviour=lambda: next(makes)(), supervision=supervision)

    with system.trace() as recorder:
        fail(agent, ValueError("mine"))
        assert system.wait_idle(WAIT)

    assert [type(event).__name__ for event in recorder.events].count("Fault") == faults
    if raises == 1:
        assert agent.request("x").get(timeout=WAIT) == 1
    else:
        assert isinstance(system.watch("a").get(timeout=WAIT).cause, ZeroDivisionError)


def test_the_pause_grows_and_old_failures_are_forgotten() -> None:
    restarts = Restarts(Supervision("restart", backoff=1, longest_backoff=3, most=3, window=10))

    assert [restarts.next(now) for now in (0, 1, 2, 3, 11)] == [1, 2, 3, None, 2]


def test_whoever_watches_is_told_and_so_are_readers_of_dead_letters(system: AgentSystem) -> None:
    watcher, letters = Watcher(), Watcher()

    class Reader(AgentBehaviour):
        def on_start(self) -> None:
            self.subscribe("dead letters")

        def on_message(self, message: Any, sender: Agent | None) -> None:
            letters.heard.append(message)

    system.spawn("reader", behaviour=Reader())
    agent = system.spawn("a", behaviour=Fragile())
    system.spawn("w", behaviour=watcher).deliver("a")
    system.find("w").deliver("nobody")  # type: ignore[union-attr]
    assert system.wait_idle(WAIT)
    error = ValueError("the end")

    fail(agent, error)
    assert system.wait_idle(WAIT)
    agent.deliver(["too late"])
    assert system.wait_idle(WAIT)

    assert watcher.heard == [Terminated("nobody", None), Terminated("a", error)]
    [letter] = letters.heard
    assert (letter.message, letter.receiver) == (["too late"], "a")
    assert system.dead_letters() == (letter,)
    assert isinstance(letter, DeadLetter)


def test_an_escalated_error_is_the_parents_and_children_end_with_it(system: AgentSystem) -> None:
    class Parent(Fragile):
        async def on_start(self) -> None:
            for name, policy in (("child", "escalate"), ("sibling", "stop")):
                await self.spawn(name, behaviour=Fragile(), supervision=Supervision(policy))  # type: ignore[arg-type]

    parent = system.spawn("parent", behaviour=Parent())
    assert parent.request("x").get(timeout=WAIT) == 1
    ends = [system.watch(name) for name in ("child", "sibling", "parent")]

    fail(system.find("child"), error := ValueError("child's"))  # type: ignore[arg-type]

    causes = [end.get(timeout=WAIT).cause for end in ends]
    assert causes == [error, None, error]


class Master(Fragile):
    """Has a worker from its start on."""

    async def on_start(self) -> None:
        self.worker = await self.spawn("worker", behaviour=Fragile, supervision=RESTART)

    async def on_message(self, message: Any, sender: Agent | None) -> Any:
        if message == "again":
            await self.spawn("worker", behaviour=Fragile)
        if message == "work":
            return await self.ask(self.worker, message)
        return await super().on_message(message, sender)


def test_a_parent_that_begins_anew_finds_its_children_at_work(system: AgentSystem) -> None:
    master = system.spawn("master", behaviour=Master, supervision=RESTART)
    assert master.request("work").get(timeout=WAIT) == 1
    for number in (2, 3):
        fail(master, OSError("down"))
        assert master.request("work").get(timeout=WAIT) == number

    with pytest.raises(InvalidConfig, match="'worker' has a behaviour already"):
        master.request("again").get(timeout=WAIT)

    # Which restarted it, too.
    assert master.request("work").get(timeout=WAIT) == 4


def test_an_error_nobody_supervises_ends_only_its_own(system: AgentSystem) -> None:
    top = system.spawn("top", behaviour=Fragile(), supervision=Supervision("escalate"))
    other = system.spawn("other", behaviour=Fragile())

    fail(top, ValueError("alone"))

    assert other.request("x").get(timeout=WAIT) == 1


@pytest.mark.parametrize(
    "wrong", [{"on_error": "pray"}, {"backoff": -1}, {"most": -1}, {"window": 0}]
)
def test_a_policy_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        Supervision(**wrong)
