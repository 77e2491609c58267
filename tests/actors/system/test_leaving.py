"""Leaving `with`: what is cancelled, what is saved, and what is said of what it waits for; and
agents that leave, whom nobody else has to wait for."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kvactors.actors import Agent, AgentBehaviour, AgentSystem, Sampling
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.testing import FaultyModel, VirtualTimer, use_timer
from kvactors.core.errors import SystemStopped
from kvactors.core.testing.models import endless_grid

SHORT = Sampling(max_tokens=8)
ENDLESS = Sampling(max_tokens=5000)
WAIT = 60


class SomeError(Exception):
    """The user's own."""


def test_an_exception_cancels_what_runs_and_saves_what_is_finished(tmp_path: Path) -> None:
    with suppress(SomeError), AgentSystem(endless_grid, tmp_path) as system:
        alice = system.spawn("alice")
        done = alice.ask("hello", sampling=SHORT).get(timeout=WAIT)
        stream = alice.stream("and on", sampling=ENDLESS)
        queued = alice.ask("later", sampling=SHORT)
        next(stream)
        raise SomeError

    assert done.durable.get() is True
    assert stream.reply.finish_reason == "cancelled"
    with pytest.raises(SystemStopped):
        queued.get(timeout=WAIT)
    with AgentSystem(endless_grid, tmp_path) as again:
        assert len(again.spawn("alice").transcript().turns) == 4


def blocked(system: AgentSystem, gate: threading.Event) -> ReplyFuture[Any]:
    """The answer of an agent in the middle of a call that waits for the gate."""
    begun = threading.Event()

    def call() -> bool:
        begun.set()
        return gate.wait(WAIT / 4)

    class Blocks(AgentBehaviour):
        def on_message(self, message: str, sender: Agent | None) -> Any:
            return self.run_blocking(call)

    answer = system.spawn("alice", behaviour=Blocks()).request("call")
    assert begun.wait(WAIT)
    return answer


def test_an_exception_leaves_calls_that_block_to_themselves() -> None:
    gate = threading.Event()
    with suppress(SomeError), AgentSystem(FaultyModel(), store=False) as system:
        answer = blocked(system, gate)
        raise SomeError

    with pytest.raises(SystemStopped):
        answer.get(timeout=WAIT)
    gate.set()


def test_ctrl_c_leaves_calls_that_block_to_themselves(caplog: pytest.LogCaptureFixture) -> None:
    gate, timer = threading.Event(), VirtualTimer()
    system = AgentSystem(FaultyModel(), store=False)
    use_timer(system, timer)
    system.start()
    answer = blocked(system, gate)

    def interrupt() -> None:
        while "stopping waits for" not in caplog.text:
            timer.let_pass(2.0)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        system.stop()

    with pytest.raises(SystemStopped):
        answer.get(timeout=WAIT)
    gate.set()


def interrupted_while_loading(code: str) -> tuple[int, str]:
    """How a program ended that was interrupted once it said that it loads: its status, and what
    stood on its stderr."""
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        try:
            _, error = process.communicate(timeout=WAIT)
        finally:
            process.kill()
    return process.returncode, error


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_a_model_that_is_being_loaded() -> None:
    code = """
import time
from kvactors.actors import AgentSystem
def slow():
    print("loading", flush=True)
    time.sleep(600)
AgentSystem(slow, store=False).start()
"""
    _, error = interrupted_while_loading(code)

    assert error.endswith("KeyboardInterrupt\n")


def test_a_process_that_is_interrupted_while_mlx_computes_ends_and_does_not_abort() -> None:
    code = """
import mlx.core as mx
from kvactors.actors import AgentSystem

def twice(x):
    for _ in range(100):
        x = x * 2
    return x.sum()

def slow():
    print("loading", flush=True)
    while True:
        mx.eval(mx.grad(twice)(mx.ones(4)))

AgentSystem(slow, store=False).start()
"""
    status, error = interrupted_while_loading(code)

    assert error.endswith("KeyboardInterrupt\n")
    assert status == -signal.SIGINT


def test_a_stop_that_waits_says_for_what(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, timer = FaultyModel(), VirtualTimer()
    system = AgentSystem(model, tmp_path)
    use_timer(system, timer)
    system.start()
    gate = model.hold()
    for agent_id in "abcdefg":
        system.spawn(agent_id).ask("hello", sampling=SHORT)
    assert model.reached.wait(WAIT)
    stopping = threading.Thread(target=system.stop)
    stopping.start()
    while system.parts.lifecycle.outstanding.refusal is None:
        stopping.join(0.01)
    assert "waits for" not in caplog.text

    while "waits for" not in caplog.text:
        timer.let_pass(2.0)

    gate.set()
    stopping.join(WAIT)
    assert "stopping waits for 7 turns ('a', 'b', 'c', 'd', 'e', ...)" in caplog.text


def test_a_stop_that_waits_for_nothing_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    timer = VirtualTimer()
    system = AgentSystem(FaultyModel(), tmp_path)
    use_timer(system, timer)
    with system:
        system.spawn("a").ask("hello", sampling=SHORT)

    timer.let_pass(60)

    assert "waits for" not in caplog.text


def test_others_are_spawned_while_an_agent_is_being_forgotten(tmp_path: Path) -> None:
    model = FaultyModel()
    with AgentSystem(model, tmp_path) as system:
        alice, bob = system.spawn("alice"), system.spawn("bob")
        gate = model.hold()
        alice.ask("hello", sampling=SHORT)
        assert model.reached.wait(WAIT)
        forgetting = threading.Thread(target=system.forget, args=("alice",))
        forgetting.start()
        while system.find("alice") is not None:
            forgetting.join(0.01)

        others = list[Agent]()
        spawning = threading.Thread(
            target=lambda: others.extend(system.spawn(name) for name in ("bob", "carol"))
        )
        spawning.start()
        spawning.join(WAIT / 4)
        spawned = list(others)
        again = threading.Thread(target=lambda: others.append(system.spawn("alice")))
        again.start()
        gate.set()
        for thread in (forgetting, spawning, again):
            thread.join(WAIT)

    assert [agent.agent_id for agent in spawned] == ["bob", "carol"]
    assert spawned[0] is bob
    # Its own name is free when it is gone.
    assert others[2].agent_id == "alice"
    assert others[2] is not alice
