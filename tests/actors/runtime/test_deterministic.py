"""Deterministic mode: the same seed gives the same interleaving, another one another."""

import time
from typing import Any

import pykka
import pytest
from makers import OpenSystem

from kvactors.actors import Agent, AgentBehaviour, BlockingCall, Sampling, Supervision
from kvactors.actors.testing import VirtualTimer
from kvactors.core.errors import InvalidConfig

WAIT = 60


class Talker(AgentBehaviour):
    """Thinks about a number and passes it on until it is 0; fails at 5."""

    def __init__(self, log: list[Any], others: list[str]) -> None:
        self.log = log
        self.others = others

    async def on_message(self, message: int, sender: Agent | None) -> None:
        self.log.append((self.agent_id, message))
        if message == 5:
            raise ValueError("five")
        sampling = Sampling(max_tokens=3, temperature=1.0, seed=message)
        reply = await self.think([message + 1, 7], sampling=sampling)
        self.log.append((self.agent_id, reply.token_ids))
        if message:
            await self.send(self.others[sum(reply.token_ids) % len(self.others)], message - 1)
            self.later(10 * message, 0)


def simulate(open_system: OpenSystem, seed: int, **options: Any) -> list[Any]:
    system = open_system(deterministic=True, seed=seed, **options)
    names = [f"{number}" for number in range(5)]
    log: list[Any] = []
    for name in names:
        system.spawn(
            name, behaviour=Talker(log, names), supervision=Supervision("restart", backoff=1)
        )
    for number, name in enumerate(names):
        system.spawn(name).deliver(number + 2)
    assert system.wait_idle(WAIT)
    system.check()
    log += [agent.transcript().token_ids for agent in system.agents()]
    system.stop()
    return log


def test_the_same_seed_gives_the_same_interleaving_and_transcripts(
    open_system: OpenSystem,
) -> None:
    runs = [simulate(open_system, seed, store=False) for seed in (1, 1, 2, 3)]

    assert runs[0] == runs[1]
    assert len({repr(run) for run in runs}) == 3


def test_saving_takes_part_and_changes_nothing(open_system: OpenSystem, tmp_path: Any) -> None:
    first = simulate(open_system, 4, store=tmp_path / "a")

    assert simulate(open_system, 4, store=tmp_path / "b") == first


def test_time_is_virtual(open_system: OpenSystem) -> None:
    ticks: list[float] = []

    class Clock(AgentBehaviour):
        def on_message(self, message: str, sender: Agent | None) -> None:
            ticks.append(system.parts.lifecycle.timer.now())
            if message == "start":
                self.every(3600, "hour")
                self.later(36_000, "end")

    begin = time.monotonic()
    system = open_system(deterministic=True, store=False)
    system.spawn("clock", behaviour=Clock()).deliver("start")
    assert system.wait_idle(WAIT)

    assert time.monotonic() - begin < WAIT
    assert ticks[0] == 0
    assert ticks[1:10] == [3600 * hour for hour in range(1, 10)]
    assert ticks[-1] == 36_000


def test_virtual_time_comes_to_what_was_cancelled_as_to_anything_else() -> None:
    timer, called = VirtualTimer(), list[float]()
    cancelled = [timer.after(seconds, lambda: called.append(timer.now())) for seconds in range(300)]
    for deadline in cancelled[1:]:
        deadline.cancel()
    timer.after(7, lambda: called.append(timer.now()))

    moments = [timer.now() for _ in range(301) if timer.advance()]

    assert moments == sorted([*range(300), 7])
    assert called == [0, 7]
    assert not timer.advance()


def test_plain_turns_streams_and_errors_work_as_ever(open_system: OpenSystem) -> None:
    system = open_system(deterministic=True, store=False)
    agent = system.spawn("a")
    short = Sampling(max_tokens=4)

    first = agent.ask([1, 2], sampling=short).get(timeout=WAIT)
    stream = agent.stream([3], sampling=short)
    pieces = "".join(piece.text for piece in stream)

    assert first.finish_reason == "length"
    assert pieces == stream.reply.text

    class Blocks(AgentBehaviour):
        def on_message(self, message: Any, sender: Agent | None) -> Any:
            return self.think([1]).get()

    class OnItsOwn(Blocks):
        blocking = True

    with pytest.raises(BlockingCall):
        system.spawn("b", behaviour=Blocks()).request(None).get(timeout=WAIT)
    with pytest.raises(InvalidConfig, match="one thread"):
        system.spawn("c", behaviour=OnItsOwn())


def test_what_never_comes_ends_with_the_timeout(open_system: OpenSystem) -> None:
    system = open_system(deterministic=True, store=False)

    class Waits(AgentBehaviour):
        async def on_message(self, message: Any, sender: Agent | None) -> None:
            self.every(1, None)
            await self.ask(self.agent, None, timeout=1e9)  # Itself: it is busy.

    waiting = system.spawn("a", behaviour=Waits()).request(None)

    with pytest.raises(pykka.Timeout):
        waiting.get(timeout=0.05)
    assert not system.wait_idle(0.05)


def test_a_world_that_never_ends_leaves_another_system_its_turn(open_system: OpenSystem) -> None:
    class Clock(AgentBehaviour):
        def on_start(self) -> None:
            self.every(1.0, "tick")

        def on_message(self, message: Any, sender: Agent | None) -> None:
            pass

    other = open_system(store=False).spawn("alice")
    world = open_system(store=False, deterministic=True)
    clock = world.spawn("clock", behaviour=Clock())

    begun = time.monotonic()
    assert other.ask([1], sampling=Sampling(max_tokens=3)).get(timeout=WAIT / 2).token_ids
    # Not only when the world's time is up.
    assert time.monotonic() - begun < WAIT / 4
    world.forget(clock.agent_id)
