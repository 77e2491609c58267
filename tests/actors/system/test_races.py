"""What two things at once must not break: each was found broken once."""

import gc
import threading
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from makers import OpenSystem

from kvactors.actors import (
    AgentSystem,
    Sampling,
    SaveFailed,
    SystemStopped,
    TurnFailed,
    TurnTimeout,
)
from kvactors.actors.testing import FaultyModel, use_actors, use_store
from kvactors.actors.turns.messages_gpu import Saved
from kvactors.actors.turns.messages_store import SaveTurn
from kvactors.actors.workers.gpu import GpuActor
from kvactors.actors.workers.persistence import PersistenceActor
from kvactors.core.testing.models import PlainTokenizer, endless_grid, grid, tiny_llama
from kvactors.persistence.commit.save import Save
from kvactors.persistence.store.store import Store
from kvactors.persistence.testing.doubles import FailingFiles, HoldingFiles

SHORT = Sampling(max_tokens=8)
WAIT = 60


def test_forgetting_an_agent_fails_its_queued_prompts_and_the_system_goes_idle(
    open_system: OpenSystem,
) -> None:
    held = FaultyModel(seed=3)
    system = open_system(held)
    alice = system.spawn("alice")
    gate = held.hold()
    futures = [alice.ask([1 + i], sampling=SHORT) for i in range(3)]
    assert held.reached.wait(WAIT)

    forgetting = threading.Thread(target=system.forget, args=("alice",))
    forgetting.start()
    gate.set()
    forgetting.join(WAIT)

    for future in futures[1:]:
        with pytest.raises(SystemStopped):
            future.get(timeout=WAIT)
    assert system.wait_idle(WAIT)
    assert system.stats()["backlog_bytes"] == 0


def test_a_timeout_while_kv_is_read_from_disk_is_reported_at_once(
    open_system: OpenSystem,
) -> None:
    system = open_system()
    system.spawn("alice").ask([1] * 30, sampling=SHORT).get(timeout=WAIT)
    system.stop()
    gate = threading.Event()

    class Slow(Store):
        def read_kv(self, agent_id: str, fingerprint: str, *, used: bool = True) -> Any:
            gate.wait(WAIT)
            return super().read_kv(agent_id, fingerprint, used=used)

    alice = open_system(prepare=partial(use_store, kind=Slow)).spawn("alice")

    with pytest.raises(TurnTimeout):
        alice.ask([2], timeout=0.1).get(timeout=WAIT)
    gate.set()

    assert alice.ask([3], sampling=SHORT).get(timeout=WAIT).cache == "warm"


def test_a_turn_that_fails_after_its_last_token_leaves_no_kv_behind(
    open_system: OpenSystem,
) -> None:
    class Fragile(PlainTokenizer):
        broken = False

        def decode(self, tokens: list[int]) -> str:
            if self.broken and set(tokens) != {5}:
                raise ValueError("cannot decode")
            return super().decode(tokens)

    tokenizer = Fragile()

    def fragile() -> tuple[Any, PlainTokenizer]:
        return grid()[0], tokenizer

    options: dict[str, Any] = {"model": fragile, "attention": "packed"}
    clean = open_system(**options, store=False).spawn("a")
    expected = clean.ask([9] * 30, sampling=SHORT).get(timeout=WAIT)
    system = open_system(**options)
    alice = system.spawn("a")
    tokenizer.broken = True
    with pytest.raises(TurnFailed, match="cannot be decoded"):
        alice.ask([5] * 40, sampling=SHORT).get(timeout=WAIT)
    tokenizer.broken = False

    reply = alice.ask([9] * 30, sampling=SHORT).get(timeout=WAIT)

    assert reply.token_ids == expected.token_ids
    assert reply.usage.reused_tokens == 0
    assert reply.cached.get(timeout=WAIT) is True
    assert system.stats()["backlog_bytes"] == 0


def test_a_tokenizer_that_fails_on_one_turn_leaves_the_engine_alive(
    open_system: OpenSystem,
) -> None:
    class Picky(PlainTokenizer):
        refused = False

        def decode(self, tokens: list[int]) -> str:
            if self.refused:
                raise ValueError("no")
            return super().decode(tokens)

    picky = Picky()
    system = open_system(lambda: (grid()[0], picky), store=False)
    agent = system.spawn("a")
    picky.refused = True

    with pytest.raises(TurnFailed):
        agent.ask([1], sampling=Sampling(max_tokens=5, stop=("x",))).get(timeout=WAIT)
    picky.refused = False

    assert agent.ask([1], sampling=SHORT).get(timeout=WAIT).token_ids


def test_cancel_right_after_ask_cancels_that_turn(open_system: OpenSystem) -> None:
    alice = open_system(endless_grid, store=False).spawn("alice")

    for _ in range(5):
        future = alice.ask([1, 2], sampling=Sampling(max_tokens=1000))
        alice.cancel()
        assert future.get(timeout=WAIT).finish_reason == "cancelled"


def test_a_turn_cancelled_before_it_is_admitted_still_tells_a_hot_agent_from_a_cold_one(
    open_system: OpenSystem,
) -> None:
    held = FaultyModel(seed=3)
    system = open_system(held, store=False, max_batch=1)
    alice, bob, carol = (system.spawn(name) for name in ("alice", "bob", "carol"))
    alice.ask([1, 2, 3], sampling=SHORT).get(timeout=WAIT)
    gate = held.hold()
    running = bob.ask([1, 2, 3], sampling=SHORT)
    assert held.reached.wait(WAIT)
    waiting = [agent.ask([4], sampling=SHORT) for agent in (alice, carol)]
    for agent in (alice, carol):
        agent.cancel()

    gate.set()

    replies = [future.get(timeout=WAIT) for future in (running, *waiting)]
    assert [reply.cache for reply in replies] == ["cold", "hot", "cold"]
    assert [reply.finish_reason for reply in replies[1:]] == ["cancelled", "cancelled"]


def test_a_cancel_that_comes_too_late_does_not_touch_what_is_asked_after_it(
    open_system: OpenSystem,
) -> None:
    alice = open_system(store=False).spawn("alice")

    for _ in range(50):
        alice.ask([1, 2], sampling=Sampling(max_tokens=1)).get(timeout=WAIT)
        alice.cancel()
        later = alice.ask([3], sampling=Sampling(max_tokens=2)).get(timeout=WAIT)
        assert later.finish_reason != "cancelled"


def test_many_restores_under_a_small_budget_read_each_agent_once(
    open_system: OpenSystem,
) -> None:
    first = open_system(tiny_llama())
    agents = [first.spawn(f"{i}") for i in range(12)]
    for future in [agent.ask([1] * 400, sampling=SHORT) for agent in agents]:
        future.get(timeout=WAIT)
    first.stop()
    reads = []

    class Counted(Store):
        def read_kv(self, agent_id: str, fingerprint: str, *, used: bool = True) -> Any:
            reads.append(agent_id)
            return super().read_kv(agent_id, fingerprint, used=used)

    system = open_system(
        tiny_llama(),
        # Of 24 blocks some must go, whatever a turn needs beside its own.
        memory_budget=20 * 320 * 256,
        max_batch=3,
        prepare=partial(use_store, kind=Counted),
    )

    replies = [system.spawn(f"{i}").ask([2], sampling=SHORT) for i in range(12)]

    assert {future.get(timeout=WAIT).cache for future in replies} == {"warm"}
    assert len(reads) == 12


def test_closing_a_stream_from_another_thread_ends_its_reader(open_system: OpenSystem) -> None:
    agent = open_system(endless_grid, store=False).spawn("a")
    stream = agent.stream([1], sampling=Sampling(max_tokens=5000))
    next(stream)
    reader = threading.Thread(target=lambda: list(stream))
    reader.start()

    stream.close()
    reader.join(WAIT)

    assert not reader.is_alive()
    assert stream.reply.finish_reason == "cancelled"


def test_stop_with_a_stuck_step_ends_near_its_timeout(open_system: OpenSystem) -> None:
    held = FaultyModel(seed=3)
    system = open_system(held, store=False)
    alice = system.spawn("alice")
    gate = held.hold()
    future = alice.ask([1], sampling=SHORT)
    assert held.reached.wait(WAIT)

    stopping = threading.Thread(target=system.stop, args=(0.2,))
    stopping.start()
    try:
        # Its time, two seconds for what was cancelled, and one for its threads.
        stopping.join(5)
        assert not stopping.is_alive()
        with pytest.raises(SystemStopped):
            future.get(timeout=WAIT)
    finally:
        gate.set()


@pytest.mark.parametrize("commit", ["succeeds", "fails in the end", "fails"])
def test_the_engine_is_told_that_a_save_has_ended_when_nothing_holds_its_kv_any_more(
    open_system: OpenSystem, commit: str
) -> None:
    slow = HoldingFiles(name="write_temp", path="*/seg-*")
    # "sync", too: who says what another said would link its file, and writes one where it failed.
    failing = FailingFiles(slow, name="*sync", path="*/seg-*")
    failing.armed = commit == "fails in the end"
    views: list[weakref.ref[memoryview]] = []
    held: list[int] = []

    class Noted(PersistenceActor):
        def on_receive(self, message: Any) -> Any:
            if isinstance(message, SaveTurn):
                tensors = [data for part in message.save.segments for *_, data in part.tensors]
                views.extend(weakref.ref(data) for data in tensors if isinstance(data, memoryview))
                del tensors
            return super().on_receive(message)

    class Counted(GpuActor):
        def on_receive(self, message: Any) -> Any:
            if isinstance(message, Saved):
                held.append(sum(view() is not None for view in views))
            return super().on_receive(message)

    class Defective(Store):
        def commit(self, saves: Sequence[Save], **_told: Any) -> None:
            slow.release.wait(WAIT)
            try:
                saves[len(saves)]
            except IndexError as error:
                raise RuntimeError("a defect") from error

    def prepare(system: AgentSystem) -> None:
        use_actors(system, gpu=Counted, persistence=Noted)
        if commit == "fails":
            use_store(system, Defective)

    system = open_system(disk=failing, prepare=prepare)
    gc.disable()
    try:
        agents = [system.spawn(name) for name in ("alice", "bob", "carol")]
        replies = [agent.ask([1] * 300, sampling=SHORT).get(timeout=WAIT) for agent in agents]
        # Whoever took the turn's end has let go of it when it takes the next message.
        assert [len(agent.transcript().turns) for agent in agents] == [2, 2, 2]
        slow.release.set()
        for reply in replies:
            if commit == "succeeds":
                assert reply.cached.get(timeout=WAIT)
            else:
                with pytest.raises(SaveFailed):
                    reply.cached.get(timeout=WAIT)
        system.stats()  # the GPU actor has heard of all of them
    finally:
        gc.enable()
    assert views
    assert held[-1] == 0, f"{held} of {len(views)} tensors"
