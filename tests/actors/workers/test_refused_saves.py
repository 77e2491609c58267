"""Saves that the disk refused: what waits, what it counts, and that it is written in the end."""

import errno
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from makers import OpenSystem
from waiting import eventually

from kvactors.actors import Sampling, SaveFailed, SaveQueueFull, StoreNotWritable
from kvactors.actors.testing import FailingFiles, HoldingFiles, VirtualTimer, use_actors
from kvactors.actors.turns.messages_gpu import ReadStats
from kvactors.actors.turns.messages_store import Flush, SaveTurn
from kvactors.actors.turns.outstanding import Outstanding
from kvactors.actors.turns.ticket import Ticket
from kvactors.actors.workers.persistence import PersistenceActor
from kvactors.actors.workers.save_group import coalesce
from kvactors.actors.workers.unwritten import LONGEST_PAUSE
from kvactors.persistence.commit.save import Save
from kvactors.persistence.testing.doubles import example_segment

SHORT = Sampling(max_tokens=6)
WAIT = 60


def test_turns_go_on_in_memory_and_are_written_when_the_disk_is_back(
    open_system: OpenSystem, heard: Callable[[str], threading.Event]
) -> None:
    full, timer = FailingFiles(name="*", path="*", code=errno.ENOSPC), VirtualTimer()
    full.armed = False
    system = open_system(disk=full, timer=timer, max_unsaved=400)
    alice = system.spawn("alice")
    full.armed = True

    for turn in range(3):
        reply = alice.ask([turn + 1] * 30, sampling=SHORT).get(timeout=WAIT)
        with pytest.raises(SaveFailed):
            reply.durable.get(timeout=WAIT)
    assert system.wait_idle(WAIT)
    assert system.health().storage == "failing"
    with pytest.raises(SaveQueueFull, match="max_unsaved 400"):
        alice.ask([9])
    system.stats()  # after the group that failed: the disk is tried again in a while
    back = heard("the disk writes again")
    full.armed = False
    timer.let_pass(LONGEST_PAUSE)

    assert back.wait(WAIT)
    assert system.health().storage == "ok"
    assert alice.ask([9], sampling=SHORT).get(timeout=WAIT).durable.get(timeout=WAIT) is True
    transcript = alice.transcript()
    system.stop()
    assert open_system().spawn("alice").transcript() == transcript


def test_what_the_disk_has_refused_counts_once_while_the_rest_of_its_group_is_written(
    open_system: OpenSystem,
) -> None:
    asked = threading.Event()

    class Late:
        """What is outstanding; it learns late that a save has ended."""

        def __init__(self, outstanding: Outstanding) -> None:
            self.outstanding = outstanding

        def __getattr__(self, name: str) -> Any:
            return getattr(self.outstanding, name)

        def end_save(self, ticket: Ticket) -> None:
            assert asked.wait(WAIT)
            self.outstanding.end_save(ticket)

    class Slow(PersistenceActor):
        def __init__(
            self, dispatcher: Any, store: Any, gpu: Any, outstanding: Any, **options: Any
        ) -> None:
            super().__init__(dispatcher, store, gpu, Late(outstanding), **options)  # type: ignore[arg-type]

    full = FailingFiles(name="*", path="*", code=errno.ENOSPC)
    full.armed = False
    system = open_system(disk=full, max_unsaved=400, prepare=partial(use_actors, persistence=Slow))
    alice = system.spawn("alice")
    full.armed = True

    lost = alice.ask([1] * 30, sampling=SHORT).get(timeout=WAIT)
    with pytest.raises(SaveFailed):
        lost.durable.get(timeout=WAIT)
    again = alice.ask([2] * 30, sampling=SHORT)
    asked.set()

    assert again.get(timeout=WAIT).usage.generated_tokens > 0
    assert system.wait_idle(WAIT)


def test_after_a_rewind_one_failed_save_of_kv_keeps_no_later_one_from_the_disk(
    open_system: OpenSystem,
) -> None:
    full = FailingFiles(name="*", path="*seg-*")
    full.armed = False
    system = open_system(disk=full)
    alice = system.spawn("alice")
    for prompt in ([1] * 290, [2] * 10):
        alice.ask(prompt, sampling=SHORT).get(timeout=WAIT).cached.get(timeout=WAIT)
    # What is stored now reaches further than what the next turn saves.
    alice.rewind(to_token=100).get(timeout=WAIT)

    full.armed = True
    lost = alice.ask([3] * 10, sampling=SHORT).get(timeout=WAIT)
    with pytest.raises(SaveFailed, match="No space left"):
        lost.cached.get(timeout=WAIT)
    full.armed = False

    reply = alice.ask([4], sampling=SHORT).get(timeout=WAIT)
    assert reply.cached.get(timeout=WAIT) is True


def test_a_turn_saved_after_a_failure_is_whole_though_the_others_are_still_being_written(
    open_system: OpenSystem,
) -> None:
    first, second = (
        HoldingFiles(name="write_temp", path=f"*/{name}-*/seg-*") for name in ("carol", "bob")
    )
    first.inner = second
    full = FailingFiles(first, name="write_temp", path="*/alice-*/seg-*")
    system = open_system(disk=full)
    alice, bob, carol = (system.spawn(name) for name in ("alice", "bob", "carol"))
    carol.ask([1], sampling=SHORT).get(timeout=WAIT)
    assert first.reached.wait(WAIT)
    lost, slow = (agent.ask([2], sampling=SHORT).get(timeout=WAIT) for agent in (alice, bob))
    first.release.set()
    assert second.reached.wait(WAIT)

    with pytest.raises(SaveFailed, match="No space left"):
        lost.cached.get(timeout=WAIT)
    full.armed = False
    reply = alice.ask([4], sampling=SHORT).get(timeout=WAIT)
    assert not slow.cached.done
    second.release.set()

    assert reply.cached.get(timeout=WAIT) is True
    assert slow.cached.get(timeout=WAIT) is True


def test_a_turn_whose_kv_a_broken_persistence_actor_was_to_read_goes_on_without(
    open_system: OpenSystem,
) -> None:
    saves = threading.Event()

    class Defective(PersistenceActor):
        def on_receive(self, message: Any) -> Any:
            if isinstance(message, Flush):
                saves.set()
                # What comes next is the question for the KV.
                eventually(lambda: not self.actor_inbox.empty())
                raise RuntimeError("a defect")
            return super().on_receive(message)

    before = open_system()
    before.spawn("warm").ask([3] * 300, sampling=SHORT).get(timeout=WAIT)
    before.stop(timeout=WAIT)
    system = open_system(prepare=partial(use_actors, persistence=Defective))
    warm, other = system.spawn("warm"), system.spawn("other")
    other.ask([5], sampling=SHORT).get(timeout=WAIT)

    assert saves.wait(WAIT)
    reply = warm.ask([6], sampling=SHORT).get(timeout=WAIT)

    assert reply.cache == "cold"


def test_a_defect_of_the_persistence_actor_leaves_no_bytes_that_wait_for_it(
    open_system: OpenSystem,
) -> None:
    broken = threading.Event()

    class Defective(PersistenceActor):
        def on_receive(self, message: Any) -> Any:
            if isinstance(message, Flush) and broken.is_set():
                raise RuntimeError("a defect")
            return super().on_receive(message)

    def backlog() -> int:
        engine, _ = system.parts.lifecycle.ask(system.parts.lifecycle.gpu, ReadStats())
        return int(engine["backlog_bytes"])

    slow = HoldingFiles(name="write_temp", path="*/seg-*")
    system = open_system(disk=slow, prepare=partial(use_actors, persistence=Defective))
    agents = [system.spawn(name) for name in ("alice", "bob")]
    replies = [agents[0].ask([1], sampling=SHORT).get(timeout=WAIT)]
    assert slow.reached.wait(WAIT)
    replies.append(agents[1].ask([1], sampling=SHORT).get(timeout=WAIT))

    assert backlog() > 0
    broken.set()
    slow.release.set()

    assert replies[0].cached.get(timeout=WAIT)
    with pytest.raises(SaveFailed, match="a defect"):
        replies[1].cached.get(timeout=WAIT)
    assert backlog() == 0


def test_what_the_disk_refused_is_written_before_it_is_forked_or_exported(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    full, never = FailingFiles(name="append", path="*ledger.log"), VirtualTimer()
    full.armed = False
    # No time passes: nothing is written again by itself.
    system = open_system(disk=full, timer=never)
    alice = system.spawn("alice")
    alice.ask([1, 2], sampling=SHORT).get(timeout=WAIT).durable.get(timeout=WAIT)
    full.armed = True
    lost = alice.ask([3], sampling=SHORT).get(timeout=WAIT)
    with pytest.raises(SaveFailed):
        lost.durable.get(timeout=WAIT)

    with pytest.raises(SaveFailed, match="refused turns of 'alice'"):
        system.spawn("bob", from_="alice")
    with pytest.raises(SaveFailed, match="refused turns of 'alice'"):
        system.export_agent("alice", tmp_path / "alice.kva")
    full.armed = False
    bob = system.spawn("bob", from_="alice")
    bob.ask([4], sampling=SHORT).get(timeout=WAIT).durable.get(timeout=WAIT)

    told = [agent.transcript() for agent in (alice, bob)]
    assert system.health().storage == "ok"
    system.stop(timeout=WAIT)
    again = open_system()
    assert [again.spawn(name).transcript() for name in ("alice", "bob")] == told


def test_a_store_that_refuses_what_waits_at_the_end_says_whose_it_is_and_can_be_opened_again(
    open_system: OpenSystem, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    system = open_system(timer=VirtualTimer())
    alice = system.spawn("alice")
    alice.ask([1], sampling=SHORT).get(timeout=WAIT).durable.get(timeout=WAIT)
    kept = alice.transcript()
    (tmp_path / "store" / "store.lock").unlink()
    lost = alice.ask([2], sampling=SHORT).get(timeout=WAIT)
    with pytest.raises(StoreNotWritable, match="was deleted while it was open"):
        lost.durable.get(timeout=WAIT)

    system.stop(timeout=WAIT)

    assert "turns of 'alice' were not written" in caplog.text
    assert open_system().spawn("alice").transcript() == kept


def test_turns_that_are_saved_as_one_have_each_token_once() -> None:
    ends = [(0, 256), (256, 300)], [(256, 320)], [(0, 256), (256, 330)]
    turns = [
        SaveTurn(
            Save("a", ({"turn": turn},), "f", tuple(example_segment(*part) for part in parts)),
            Ticket.begin("a", streamed=False),
            0,
            None,
        )
        for turn, parts in enumerate(ends)
    ]

    two, three = coalesce(turns[:2], ({"turn": -1},)), coalesce(turns, ())

    assert [record["turn"] for record in two.records] == [-1, 0, 1]
    assert [(part.start, part.end) for part in two.segments] == [(0, 256), (256, 320)]
    assert [record["turn"] for record in three.records] == [0, 1, 2]
    assert [(part.start, part.end) for part in three.segments] == ends[2]
