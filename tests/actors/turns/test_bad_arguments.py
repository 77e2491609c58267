"""Numbers by one rule, text that has UTF-8, names that are near, and handles that stay here."""

import copy
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pykka
import pytest
from makers import OpenSystem

import kvactors
from kvactors.actors import (
    AgentBehaviour,
    AgentNotStored,
    AgentSystem,
    DropOldest,
    InvalidConfig,
    InvalidInput,
    KvactorsError,
    LanePolicy,
    Sampling,
    Summarize,
    Supervision,
    SystemRunning,
    SystemStopped,
    WaitTimeout,
)
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.core.model.options import ModelOptions
from kvactors.core.numbers import number, whole
from kvactors.core.testing.models import tiny_llama
from kvactors.persistence import errors as store_errors

# Its numbers are no ints for a type checker, and are to be taken all the same.
np: Any = numpy
SHORT = Sampling(max_tokens=4)
WAIT = 60
HALF = "caf\udcc3\udca9"


# -- numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [True, np.True_, "3", b"3", None, 3 + 0j])
def test_neither_truth_nor_text_is_a_number(value: Any) -> None:
    assert whole(value) is None
    assert number(value) is None


def test_what_index_and_float_take_is_a_number_and_kept_as_pythons_own() -> None:
    assert whole(2.0) is None
    assert number(10**400) is None
    assert [type(whole(np.uint8(3))), type(number(np.float32(0.5)))] == [int, float]
    made = [
        Sampling(
            np.int64(9),
            np.float32(0.5),
            np.float64(0.25),
            np.int32(3),
            seed=np.uint64(7),
        ),
        DropOldest(np.int64(1), np.float64(0.25)),
        Summarize(max_tokens=np.int8(5)),
        LanePolicy(np.int64(3), timeout=np.float64(1.5)),
        ModelOptions(
            kv_bits=np.int64(8),
            float_tokens=np.int16(4),
            group_size=np.int64(32),
            context=np.int64(64),
        ),
    ]

    values = [
        getattr(record, name)
        for record in made
        for name in inspect.signature(type(record)).parameters
        if name != "kv_bits"
    ]

    assert not [value for value in values if isinstance(value, np.generic)]
    assert made[0] == Sampling(9, 0.5, 0.25, 3, seed=7)


def test_a_system_takes_numbers_of_numpy(open_system: OpenSystem) -> None:
    system = open_system(
        max_batch=np.int64(2),
        max_waiting=np.int32(9),
        memory_budget=np.int64(10_000_000),
        max_disk=np.int64(1_000_000),
        max_unsaved=np.int64(1_000_000),
        target_latency=np.float32(0.1),
        watchdog=np.float32(60),
        kv_bits=np.int64(8),
        seed=np.int64(3),
    )
    alice = system.spawn("alice")

    reply = alice.ask([1, 2], sampling=SHORT, timeout=np.float32(WAIT), priority=np.int64(1)).get(
        timeout=WAIT
    )
    assert reply.durable.get(timeout=WAIT)
    assert alice.rewind(np.int64(1)).get(timeout=WAIT).turns == 0
    alice.ask(messages=[{"role": "user", "content": "a"}], threshold=np.float32(0), sampling=SHORT)
    assert system.info.spec.layers[0].sides[0].bits == 8


def test_max_disk_is_bytes_or_text(tmp_path: Path) -> None:
    with AgentSystem(tiny_llama(), store=tmp_path, max_disk="1KB") as system:
        reply = system.spawn("a").ask([1] * 300, sampling=SHORT).get(timeout=WAIT)
        with pytest.raises(KvactorsError, match="max_disk is 1000 bytes"):
            reply.cached.get(timeout=WAIT)
    with pytest.raises(InvalidConfig, match="max_disk is bytes or text"):
        AgentSystem(tiny_llama(), store=tmp_path, max_disk="lots")


# -- text ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("say", "what"),
    [
        (lambda system: system.spawn("a").ask(HALF), "the prompt"),
        (lambda system: system.spawn("a").ask(HALF, match=True), "the prompt"),
        (lambda system: system.spawn("a").tell(HALF), "the prompt"),
        (lambda system: system.spawn("a").observe(HALF), "the prompt"),
        (lambda system: system.spawn("a").observe("x", role=HALF), "role"),
        (
            lambda system: system.spawn("a").ask(messages=[{"role": "user", "content": HALF}]),
            r"messages\[0\]",
        ),
        (
            lambda system: system.spawn("a").ask(
                messages=[{"role": "user", "content": [{"type": "text", "text": HALF}]}]
            ),
            r"messages\[0\]",
        ),
        (lambda system: system.spawn("b", system_prompt=HALF), "system_prompt"),
    ],
)
def test_half_a_character_is_refused_where_it_stands(
    shared: AgentSystem, say: Callable[[AgentSystem], object], what: str
) -> None:
    with pytest.raises(InvalidInput, match=rf"^{what} has a lone surrogate, '\\udcc3', .* 3: "):
        say(shared)
    assert shared.find("b") is None


# -- names ---------------------------------------------------------------------------------


def test_an_unknown_parameter_of_spawn_names_the_nearest(shared: AgentSystem) -> None:
    spawn: Any = shared.spawn
    with pytest.raises(InvalidInput, match="no parameter 'behavior': did you mean 'behaviour'"):
        spawn("c", behavior=AgentBehaviour())
    with pytest.raises(InvalidInput, match="no parameter 'xyzzy': it has agent_id, system_prompt"):
        spawn("c", xyzzy=1)
    assert shared.find("c") is None


def test_what_says_how_to_decode_is_pointed_to_sampling_and_a_conversation_to_messages(
    shared: AgentSystem,
) -> None:
    agent: Any = shared.spawn("e")
    for take in (agent.ask, agent.tell, agent.stream):
        with pytest.raises(InvalidInput, match=r"'seed': say sampling=Sampling\(seed=...\)"):
            take("x", seed=5)
    with pytest.raises(InvalidInput, match=r"such as Sampling\(seed=5\), not dict"):
        agent.ask("x", sampling={"seed": 5})
    with pytest.raises(InvalidInput, match="a conversation goes into messages="):
        agent.ask([{"role": "user", "content": "x"}])


def test_a_supervision_of_nothing_is_refused(shared: AgentSystem) -> None:
    with pytest.raises(InvalidConfig, match="pass behaviour= too"):
        shared.spawn("d", supervision=Supervision("restart"))
    assert shared.find("d") is None


def test_whoever_is_not_there_is_named_by_one_error(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    system = open_system()
    calls: list[tuple[str, Callable[[], object]]] = [
        ("to export", lambda: system.export_agent("nobody", tmp_path / "file")),
        ("to export", lambda: system.export_agent("nobody", tmp_path / "f", format="q4-flat")),
        ("to forget", lambda: system.forget("nobody")),
        ("to prefetch", lambda: system.prefetch("nobody")),
        ("to fork", lambda: system.spawn("child", from_="nobody")),
    ]

    for purpose, call in calls:
        with pytest.raises(AgentNotStored, match=f"no agent 'nobody' {purpose}"):
            call()

    assert system.agents() == []
    system.spawn("somebody")
    system.prefetch("somebody")
    system.forget("somebody")


# -- life ----------------------------------------------------------------------------------


def test_a_system_that_runs_is_not_said_to_be_stopped(open_system: OpenSystem) -> None:
    system = open_system(store=False)

    with pytest.raises(SystemRunning, match="starts once, and this one is running"):
        system.start()
    assert system.spawn("a").ask([1], sampling=SHORT).get(timeout=WAIT)
    system.stop()
    with pytest.raises(SystemStopped, match="this one is stopped"):
        system.start()


def test_a_journal_that_cannot_be_made_is_a_bad_parameter(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    name = "x" * 300

    with pytest.raises(InvalidConfig, match="exists: a journal is of one run"):
        AgentSystem(tiny_llama(), store=False, journal=tmp_path / "folder").start()
    with pytest.raises(InvalidConfig, match=r"no journal can be made at .*: File name too long"):
        AgentSystem(tiny_llama(), store=False, journal=tmp_path / name).start()


def test_waiting_too_short_is_every_kind_of_timeout() -> None:
    future: ReplyFuture[int] = ReplyFuture()

    for kind in (WaitTimeout, KvactorsError, TimeoutError, pykka.Timeout):
        with pytest.raises(kind, match=r"longer than the 0\.01 s"):
            future.get(timeout=0.01)
    future.resolve(3)
    assert future.get(timeout=0.01) == 3


# -- copies --------------------------------------------------------------------------------


def test_a_reply_passes_to_other_processes(open_system: OpenSystem) -> None:
    reply = open_system().spawn("a").ask([1], sampling=Sampling(choices=("a", "b"))).get()
    reply.durable.get(timeout=WAIT)
    reply.cached.get(timeout=WAIT)

    for copied in (pickle.loads(pickle.dumps(reply)), copy.deepcopy(reply)):
        assert copied == reply
        assert copied.scores == reply.scores
        assert copied.durable.get(timeout=0) is True


def test_a_copied_future_says_what_it_missed() -> None:
    future: ReplyFuture[int] = ReplyFuture()
    copied = pickle.loads(pickle.dumps(future))
    future.reject(AgentNotStored("bob"))

    with pytest.raises(SystemStopped, match="not settled when it was copied"):
        copied.get(timeout=0)
    with pytest.raises(AgentNotStored, match="'bob'"):
        pickle.loads(pickle.dumps(future)).get(timeout=0)


def test_handles_stay_in_their_process_and_say_so(shared: AgentSystem) -> None:
    alice = shared.spawn("alice")
    with alice.stream([1], sampling=SHORT) as stream:
        for handle, advice in ((alice, "agent_id"), (shared, "a store of"), (stream, "its text")):
            for copying in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(InvalidInput, match=f"belongs to its process: .*{advice}"):
                    copying(handle)


def made(kind: type[KvactorsError]) -> KvactorsError:
    """An error of a kind, made of whatever it is made of."""
    fitting = {"encrypted": True, "path": Path("p"), "root": Path("r"), "pid": 3, "purpose": "to x"}
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    values = {
        p.name: fitting.get(p.name, 7 if p.name in ("needed", "held", "limit") else "text")
        for p in parameters
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    return kind(**values) if values else kind("the rule, and the numbers")


def test_every_error_passes_to_other_processes() -> None:
    named = [getattr(kvactors, name) for name in kvactors.__all__]
    named += [getattr(store_errors, name) for name in store_errors.__all__]
    kinds = {k for k in named if isinstance(k, type) and issubclass(k, KvactorsError)}
    assert len(kinds) > 45

    for kind in kinds:
        error = made(kind)
        again = pickle.loads(pickle.dumps(error))

        assert (type(again), str(again), vars(again)) == (kind, str(error), vars(error))
