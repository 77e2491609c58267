"""Messages to agents that another system has: who sends them notices nothing."""

from typing import Any

import pytest
from behaviours import Echo, Recorder, run
from makers import OpenSystem

from kvactors.actors import AgentSystem, MailboxFull, TurnTimeout, Undelivered
from kvactors.actors.behaviours.mail import Deliver
from kvactors.actors.runtime.futures import ReplyFuture

WAIT = 60


@pytest.fixture
def two(open_system: OpenSystem) -> tuple[AgentSystem, AgentSystem]:
    """Two systems; the first sends what it has no agent for to the second."""
    here, there = open_system(store=False), open_system(store=False)

    def elsewhere(deliver: Deliver) -> ReplyFuture[Any] | None:
        agent = there.find(deliver.receiver)
        if agent is None:
            return None
        ask = deliver.reply is not None
        return agent.request(deliver.message) if ask else agent.deliver(deliver.message)

    here.parts.router.elsewhere = elsewhere
    return here, there


def test_messages_to_an_agent_of_another_system_are_told_and_asked_as_here(
    two: tuple[AgentSystem, AgentSystem],
) -> None:
    here, there = two
    recorder = Recorder()
    there.spawn("recorder", behaviour=recorder)
    there.spawn("echo", behaviour=Echo())

    async def talk(self: Any) -> tuple[Any, Any]:
        await self.send("recorder", "told")
        return await self.ask("recorder", "asked"), await self.ask("echo", [1, 2])

    answers = run(here, talk)

    assert answers == (2, [1, 2])
    assert recorder.seen == [("told", None), ("asked", None)]
    assert here.wait_idle(WAIT)
    assert here.dead_letters() == there.dead_letters() == ()


def test_an_agent_of_this_system_is_never_looked_for_elsewhere(
    two: tuple[AgentSystem, AgentSystem],
) -> None:
    here, there = two
    own, other = Recorder(), Recorder()
    here.spawn("recorder", behaviour=own)
    there.spawn("recorder", behaviour=other)

    async def talk(self: Any) -> Any:
        return await self.ask("recorder", "asked")

    assert run(here, talk) == 1
    assert other.seen == []


def test_what_it_raises_there_is_raised_here_and_what_nobody_takes_is_a_dead_letter_here(
    two: tuple[AgentSystem, AgentSystem],
) -> None:
    here, there = two
    there.spawn("echo", behaviour=Echo())

    async def fails(self: Any) -> None:
        with pytest.raises(KeyError, match="there"):
            await self.ask("echo", KeyError("there"))

    async def nobody(self: Any) -> None:
        await self.send("nobody", "told")
        with pytest.raises(Undelivered):
            await self.ask("nobody", "asked")

    run(here, fails)
    run(here, nobody)

    assert [letter.message for letter in here.dead_letters()] == ["told", "asked"]
    assert here.wait_idle(WAIT)


@pytest.mark.parametrize("error", [MailboxFull("full there"), Undelivered("gone there")])
def test_a_message_that_was_told_and_refused_there_is_a_dead_letter_here(
    open_system: OpenSystem, error: Exception
) -> None:
    here = open_system(store=False)
    sent: ReplyFuture[Any] = ReplyFuture()
    here.parts.router.elsewhere = lambda _deliver: sent
    told = here.parts.router.post("far", "message", None)
    waiting = not told.done and not here.wait_idle(0.01)

    sent.reject(error)

    assert waiting
    assert here.wait_idle(WAIT)
    assert [(letter.message, letter.reason) for letter in here.dead_letters()] == [
        ("message", str(error))
    ]
    assert isinstance(told.error, MailboxFull) is isinstance(error, MailboxFull)


def test_why_what_was_told_elsewhere_is_lost_is_warned_of_once_an_agent_unless_many_have_lost_some(
    open_system: OpenSystem, caplog: pytest.LogCaptureFixture
) -> None:
    here = open_system(store=False)
    router = here.parts.router

    def lose(agent: str, why: str) -> None:
        sent: ReplyFuture[Any] = ReplyFuture()
        sent.reject(Undelivered(why))
        router.elsewhere = lambda _deliver: sent
        router.post(agent, "message", None)

    for why in ("gone", "gone", "its node, too"):
        lose("far", why)
    assert caplog.messages == [f"dead letter to 'far': {why}" for why in ("gone", "its node, too")]

    for number in range(1000):
        lose(f"far-{number}", "gone")
    lose("far", "its node, too")
    assert len(caplog.messages) == 2 + 1000 + 1


def test_who_waits_too_long_for_an_answer_from_elsewhere_gives_it_up(
    open_system: OpenSystem,
) -> None:
    here = open_system(store=False)
    sent: ReplyFuture[Any] = ReplyFuture()
    here.parts.router.elsewhere = lambda _deliver: sent

    asked = here.parts.router.ask("far", "message", None, 0.01)
    with pytest.raises(TurnTimeout):
        asked.get(timeout=WAIT)
    sent.resolve("too late")

    assert here.wait_idle(WAIT)
