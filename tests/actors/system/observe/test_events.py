"""What the actors tell of their work, to whom, and that it holds no text."""

import errno
import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from makers import OpenSystem

from kvactors.actors import Agent, AgentBehaviour, Sampling, Supervision
from kvactors.actors.system.observe.recorder import Recorder
from kvactors.actors.testing import FaultyModel
from kvactors.core.errors import InvalidInput
from kvactors.core.testing.models import endless_grid, grid
from kvactors.core.trace import (
    DecodeStep,
    Evicted,
    Fault,
    PrefillStep,
    RestoreBegan,
    RestoreEnded,
    SaveBegan,
    SaveEnded,
    TraceEvent,
    Tracer,
    TurnEnded,
    TurnQueued,
    TurnStarted,
)
from kvactors.persistence.testing.doubles import FailingFiles

SHORT = Sampling(max_tokens=6)
WAIT = 60
SECRET = "the combination is 39-12-7"


def of(recorder: Recorder, *kinds: type) -> list[Any]:
    return [event for event in recorder.events if isinstance(event, kinds)]


def queued(serial: int) -> TraceEvent:
    return TurnQueued(float(serial), "alice", serial)


# -- the tracer and the recorder -----------------------------------------------------------


def test_a_tracer_says_whether_anybody_listens_and_to_what() -> None:
    tracer, turns, all_of_it = Tracer(), Recorder(), Recorder()
    assert (tracer.on, tracer.steps) == (False, False)

    tracer.listen(turns, steps=False)
    assert (tracer.on, tracer.steps) == (True, False)
    tracer.listen(all_of_it)
    assert (tracer.on, tracer.steps) == (True, True)
    tracer.tell(queued(1))
    tracer.tell(DecodeStep(1.0, 2.0, 1, ("alice",)))
    tracer.leave(all_of_it)
    tracer.tell(queued(2))
    tracer.leave(turns)

    assert (tracer.on, tracer.steps) == (False, False)
    assert [event.serial for event in of(turns, TurnQueued)] == [1, 2]
    assert len(turns.events) == 2
    assert len(all_of_it.events) == 2


def test_the_recorder_keeps_the_latest_events_and_counts_the_others() -> None:
    recorder = Recorder(capacity=3)

    for serial in range(5):
        recorder(queued(serial))

    assert [event.serial for event in of(recorder, TurnQueued)] == [2, 3, 4]
    assert recorder.dropped == 2


@pytest.mark.usefixtures("no_telemetry")
def test_while_nobody_listens_nothing_is_told(
    open_system: OpenSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[TraceEvent] = []
    # All parts hold the tracer, and telling nobody leaves no trace.
    monkeypatch.setattr(Tracer, "tell", lambda _, event: told.append(event))
    system = open_system(grid)
    alice = system.spawn("alice")

    alice.ask([1, 2, 3], sampling=SHORT).get(timeout=WAIT)
    system.wait_idle(WAIT)
    before = list(told)
    with system.trace():
        alice.ask([1, 2, 3], sampling=SHORT).get(timeout=WAIT)

    assert before == []
    assert told


def test_a_listener_that_raises_is_not_called_again_and_harms_nobody(
    open_system: OpenSystem, heard: Callable[[str], Any]
) -> None:
    system, calls = open_system(grid, store=False), list[TraceEvent]()

    def listener(event: TraceEvent) -> None:
        calls.append(event)
        raise ValueError("mine")

    logged = heard("a listener raised")
    system.parts.lifecycle.tracer.listen(listener)
    reply = system.spawn("alice").ask([1, 2], sampling=SHORT).get(timeout=WAIT)

    assert reply.usage.generated_tokens == 6
    assert len(calls) == 1
    assert logged.is_set()


def test_a_trace_may_end_in_the_callback_of_an_answer(open_system: OpenSystem) -> None:
    system, ended = open_system(grid, store=False), threading.Event()
    held = ExitStack()
    recorder = held.enter_context(system.trace())

    def end(_: Any) -> None:
        held.close()
        ended.set()

    system.spawn("alice").ask([1, 2], sampling=SHORT).on_done(end)

    assert ended.wait(WAIT)
    assert of(recorder, TurnQueued)


# -- a system ------------------------------------------------------------------------------


def test_a_turn_is_told_from_its_prompt_to_its_save(open_system: OpenSystem) -> None:
    system = open_system(grid)
    with system.trace() as recorder:
        reply = system.spawn("alice").ask([7] * 300, sampling=SHORT).get(timeout=WAIT)
        system.wait_idle(WAIT)

    kinds = list(dict.fromkeys(type(event) for event in recorder.events))
    assert kinds[:4] == [TurnQueued, TurnStarted, PrefillStep, DecodeStep]
    # The agent and the persistence actor end it on threads of their own.
    assert set(kinds[4:]) == {TurnEnded, SaveBegan, SaveEnded}
    assert kinds.index(SaveBegan) < kinds.index(SaveEnded)
    (ended,), (save,) = of(recorder, TurnEnded), of(recorder, SaveEnded)
    assert (ended.reason, ended.failed, ended.cache) == ("length", False, "cold")
    assert ended.usage["generated_tokens"] == reply.usage.generated_tokens == 6
    assert ended.timing["total"] == reply.timing.total
    assert (save.agent_id, save.ok, save.nbytes) == ("alice", True, 305 * 320)
    chunks = [part for event in of(recorder, PrefillStep) for part in event.parts]
    assert [(chunks[0][1], chunks[-1][2])] == [(0, 299)]
    assert sum(len(event.agent_ids) for event in of(recorder, DecodeStep)) == 6
    assert {event.batch for event in of(recorder, DecodeStep)} == {1}


def test_a_restore_says_how_many_bytes_came_from_where(open_system: OpenSystem) -> None:
    first = open_system(grid)
    first.spawn("alice").ask([7] * 300, sampling=SHORT).get(timeout=WAIT)
    first.stop()
    system = open_system(grid)
    with system.trace() as recorder:
        system.spawn("alice").ask([1], sampling=SHORT).get(timeout=WAIT)

    (began,), (ended,) = of(recorder, RestoreBegan), of(recorder, RestoreEnded)
    (started,) = of(recorder, TurnStarted)
    assert began.agent_id == ended.agent_id == "alice"
    assert began.at < ended.at < started.at
    assert (ended.nbytes, ended.tier) == (305 * 320, "warm")
    assert (started.cache, started.reused) == ("warm", 305)


def test_rewinds_errors_and_cancelled_turns_end_once(open_system: OpenSystem) -> None:
    system = open_system(endless_grid, store=False, context=2000)
    alice = system.spawn("alice")
    with system.trace() as recorder:
        alice.ask([1, 2], sampling=SHORT).get(timeout=WAIT)
        alice.rewind().get(timeout=WAIT)
        system.spawn("bob", from_="alice")
        stream = alice.stream([1, 2], sampling=Sampling(max_tokens=900))
        next(stream)
        stream.close()
        with pytest.raises(InvalidInput):
            alice.ask([1] * 5000, sampling=SHORT).get(timeout=WAIT)
        system.wait_idle(WAIT)

    ended = of(recorder, TurnEnded)
    assert [event.reason for event in ended] == [
        "length", "done", "done", "cancelled", "ContextExceeded",
    ]  # fmt: skip
    assert [event.failed for event in ended] == [False] * 4 + [True]
    assert [event.serial for event in ended] == [e.serial for e in of(recorder, TurnQueued)]


def test_a_failed_step_and_the_turn_it_ends_are_told(open_system: OpenSystem) -> None:
    model = FaultyModel()
    system = open_system(model, store=False)
    alice = system.spawn("alice")
    alice.ask([1], sampling=SHORT).get(timeout=WAIT)
    with system.trace() as recorder:
        model.arm(step=1, error=ValueError(SECRET))
        with pytest.raises(Exception, match="39-12-7"):
            alice.ask([2], sampling=SHORT).get(timeout=WAIT)

    (fault,), (ended,) = of(recorder, Fault), of(recorder, TurnEnded)
    assert (fault.where, fault.agent_id, fault.error) == ("step", "alice", "ValueError")
    assert (ended.reason, ended.failed) == ("TurnFailed", True)
    assert "39-12-7" not in repr(recorder.events)


def test_a_failed_save_is_told(open_system: OpenSystem) -> None:
    full = FailingFiles(name="*", path="*seg-*", code=errno.ENOSPC)
    system = open_system(grid, disk=full)
    with system.trace() as recorder:
        system.spawn("alice").ask([1, 2], sampling=SHORT).get(timeout=WAIT)
        system.wait_idle(WAIT)

    (save,), (fault,) = of(recorder, SaveEnded), of(recorder, Fault)
    assert (save.ok, fault.where, fault.agent_id) == (False, "disk", "alice")


def test_who_leaves_memory_is_told_with_what_that_freed(open_system: OpenSystem) -> None:
    system = open_system(grid, store=False, attention="packed", memory_budget=1_600_000)
    with system.trace() as recorder:
        for number, name in enumerate("abcdefgh", 3):
            system.spawn(name).ask([number] * 600, sampling=SHORT).get(timeout=WAIT)

    evicted = of(recorder, Evicted)
    assert len(evicted) == system.stats()["evictions"] > 0
    assert {(event.tier, event.nbytes) for event in evicted} == {("memory", 605 * 320)}


def test_a_behaviour_that_raises_is_told(open_system: OpenSystem) -> None:
    class Fragile(AgentBehaviour):
        def on_message(self, message: Any, sender: Agent | None) -> None:
            raise KeyError(message)

    system = open_system(grid, store=False)
    with system.trace() as recorder:
        agent = system.spawn("alice", behaviour=Fragile, supervision=Supervision("stop"))
        with pytest.raises(KeyError):
            agent.request(SECRET).get(timeout=WAIT)

    (fault,) = of(recorder, Fault)
    assert (fault.where, fault.agent_id, fault.error) == ("behaviour", "alice", "KeyError")
    assert SECRET not in repr(recorder.events)


def test_listening_changes_nothing_in_deterministic_mode(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    def run(trace: Path | None) -> list[Any]:
        system = open_system(grid, store=False, deterministic=True, seed=5)
        sampling = Sampling(max_tokens=9, temperature=1.0)
        with system.trace(trace, capacity=10_000 if trace else 1):
            asked = [system.spawn(f"{n}").ask([n + 1] * 40, sampling=sampling) for n in range(5)]
            replies = [future.get(timeout=WAIT) for future in asked]
        system.stop()
        return [(reply.token_ids, reply.timing.prefill) for reply in replies]

    assert run(None) == run(tmp_path / "trace.json")


# -- text ----------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [False, True])
def test_what_is_said_is_in_no_event_and_in_the_log_only_if_asked(
    open_system: OpenSystem, caplog: pytest.LogCaptureFixture, asked: bool
) -> None:
    caplog.set_level(logging.DEBUG, logger="kvactors")
    system = open_system("default", log_text=asked)
    with system.trace() as recorder:
        reply = system.spawn("alice", SECRET).ask(SECRET).get(timeout=WAIT)
        system.wait_idle(WAIT)

    told = repr(recorder.events)
    assert SECRET not in told
    assert reply.text not in told
    assert str(reply.token_ids[0]) + "," + str(reply.token_ids[1]) not in told
    assert (SECRET in caplog.text) == asked
    assert (repr(reply.text) in caplog.text) == asked
    assert "'alice': turn 0 adds" in caplog.text
    assert {record.name for record in caplog.records if "turn 0" in record.getMessage()} == {
        "kvactors.actors.agents.answers",
        "kvactors.actors.agents.request_builder",
    }
