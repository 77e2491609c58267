"""The public test doubles: a model that fails, a disk that is full, slow or lies, a clock."""

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from makers import OpenSystem

from kvactors.actors import (
    Agent,
    AgentBehaviour,
    AgentSystem,
    Sampling,
    SaveFailed,
    Supervision,
    TurnFailed,
    TurnTimeout,
    testing,
)
from kvactors.actors.testing import (
    FailingFiles,
    FaultyModel,
    HoldingFiles,
    LyingFiles,
    VirtualTimer,
    use_disk,
    use_timer,
)
from kvactors.core.errors import InvalidConfig

SHORT = Sampling(max_tokens=4)
WAIT = 60


class Counts(AgentBehaviour):
    """Counts what it gets; fails on an exception; "later" comes in a minute."""

    def __init__(self) -> None:
        self.seen = 0

    def on_message(self, message: Any, sender: Agent | None) -> int:
        self.seen += 1
        if isinstance(message, Exception):
            raise message
        if message == "start":
            self.later(60, "later")
        return self.seen


def test_a_model_fails_at_the_step_it_was_told(open_system: OpenSystem) -> None:
    model = FaultyModel()
    agent = open_system(model, store=False).spawn("a")

    model.arm(poison=77)
    with pytest.raises(TurnFailed, match="poisoned token 77"):
        agent.ask([5, 77], sampling=SHORT).get(timeout=WAIT)
    model.arm(step=1, error=RuntimeError("once"))
    with pytest.raises(TurnFailed, match="once"):
        agent.ask([5], sampling=SHORT).get(timeout=WAIT)

    assert agent.ask([5], sampling=SHORT).get(timeout=WAIT).token_ids


def test_a_model_holds_its_step_until_told(open_system: OpenSystem) -> None:
    model = FaultyModel()
    agent = open_system(model, store=False).spawn("a")

    gate = model.hold()
    reply = agent.ask([5], sampling=SHORT)
    assert model.reached.wait(WAIT)
    assert not reply.done
    gate.set()

    assert reply.get(timeout=WAIT).token_ids


def test_a_full_disk_fails_the_save_and_not_the_turn(open_system: OpenSystem) -> None:
    full = FailingFiles(name="*", path="*ledger.log", code=errno.ENOSPC)
    reply = open_system(disk=full).spawn("a").ask([5], sampling=SHORT).get(timeout=WAIT)

    with pytest.raises(SaveFailed, match="No space left"):
        reply.durable.get(timeout=WAIT)
    full.armed = False


def test_a_slow_disk_keeps_nobody_waiting_for_a_reply(open_system: OpenSystem) -> None:
    slow = HoldingFiles(path="*ledger.log")
    reply = open_system(disk=slow).spawn("a").ask([5], sampling=SHORT).get(timeout=WAIT)

    assert slow.reached.wait(WAIT)
    assert not reply.durable.done
    slow.release.set()

    assert reply.durable.get(timeout=WAIT) is True


def test_what_a_lying_disk_spoilt_is_computed_again(open_system: OpenSystem) -> None:
    system = open_system(disk=LyingFiles(path="*/seg-*"))
    system.spawn("a").ask([5] * 300, sampling=SHORT).get(timeout=WAIT).cached.get(timeout=WAIT)
    system.stop()

    reply = open_system().spawn("a").ask([6], sampling=SHORT).get(timeout=WAIT)

    assert (reply.cache, reply.usage.reused_tokens) == ("cold", 0)


def test_timeouts_messages_and_pauses_go_by_a_clock_that_the_test_drives(
    open_system: OpenSystem,
) -> None:
    model, timer = FaultyModel(), VirtualTimer()
    system = open_system(model, timer=timer, store=False)
    behaviour = Counts()
    hour = Supervision("restart", backoff=3600, longest_backoff=3600)
    counts = system.spawn("counts", behaviour=behaviour, supervision=hour)
    assert counts.request("start").get(timeout=WAIT) == 1

    timer.let_pass(59.9)
    assert counts.request("still").get(timeout=WAIT) == 2
    timer.let_pass(0.2)
    assert counts.request("after").get(timeout=WAIT) == 4

    with pytest.raises(ValueError, match="mine"):
        counts.request(ValueError("mine")).get(timeout=WAIT)
    waiting = counts.request("in the pause")
    timer.let_pass(3599)
    assert not waiting.done
    timer.let_pass(1)
    assert waiting.get(timeout=WAIT) == 6

    gate = model.hold()
    late = system.spawn("late").ask([1], timeout=5, sampling=SHORT)
    assert model.reached.wait(WAIT)
    timer.let_pass(5)
    with pytest.raises(TurnTimeout):
        late.get(timeout=WAIT)
    gate.set()
    assert system.wait_idle(WAIT)


def test_doubles_are_put_in_before_a_system_starts(open_system: OpenSystem, tmp_path: Path) -> None:
    running = open_system()

    with pytest.raises(InvalidConfig, match="not started"):
        use_disk(running, FailingFiles())
    with pytest.raises(InvalidConfig, match="not started"):
        use_timer(running, VirtualTimer())
    with pytest.raises(InvalidConfig, match="store"):
        use_disk(AgentSystem(FaultyModel(), store=False), FailingFiles())
    with pytest.raises(InvalidConfig, match="deterministic"):
        use_timer(AgentSystem(FaultyModel(), store=False, deterministic=True), VirtualTimer())


def test_importing_the_doubles_loads_no_mlx() -> None:
    code = "import sys, kvactors.actors.testing; sys.exit('mlx' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], timeout=WAIT).returncode == 0


def test_every_double_is_on_the_page_of_the_interface() -> None:
    page = (Path(__file__).parents[2] / "actors/README.md").read_text(encoding="utf-8")

    assert [name for name in testing.__all__ if f"`{name}" not in page] == []
