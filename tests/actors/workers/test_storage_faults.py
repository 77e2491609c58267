"""What an agent's owner sees when the disk is full, slow, or lies."""

import errno
import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvactors.actors import AgentSystem, EncryptionError, Sampling, SaveFailed, SaveQueueFull
from kvactors.actors.testing import FailingFiles, HoldingFiles, VirtualTimer, use_actors
from kvactors.actors.turns.messages_gpu import ReadStats
from kvactors.actors.turns.messages_store import Flush
from kvactors.actors.turns.outstanding import Outstanding
from kvactors.actors.turns.ticket import Ticket
from kvactors.actors.workers.persistence import PersistenceActor
from kvactors.actors.workers.unwritten import LONGEST_PAUSE
from kvactors.core.errors import InvalidConfig

OpenSystem = Callable[..., AgentSystem]
SHORT = Sampling(max_tokens=6)
WAIT = 60


@pytest.mark.parametrize("path", ["*ledger.log", "*seg-*", "*manifest*"])
def test_on_a_full_disk_the_reply_arrives_and_a_later_save_makes_up_for_it(
    open_system: OpenSystem, path: str
) -> None:
    full = FailingFiles(name="*", path=path, code=errno.ENOSPC)
    full.armed = False
    system = open_system(disk=full)
    alice = system.spawn("alice")
    alice.ask([1, 2], sampling=SHORT).get(timeout=WAIT).cached.get(timeout=WAIT)

    full.armed = True
    lost = alice.ask([3] * 300, sampling=SHORT).get(timeout=WAIT)
    failed = lost.durable if "ledger" in path else lost.cached
    with pytest.raises(SaveFailed, match="No space left"):
        failed.get(timeout=WAIT)
    full.armed = False
    reply = alice.ask([4], sampling=SHORT).get(timeout=WAIT)

    assert reply.durable.get(timeout=WAIT) is True
    assert reply.cached.get(timeout=WAIT) is True
    transcript = alice.transcript()
    system.stop()
    again = open_system().spawn("alice")
    assert again.transcript() == transcript
    warm = again.ask([5], sampling=SHORT).get(timeout=WAIT)
    assert warm.cache == "warm"
    assert warm.usage.reused_tokens == len(transcript.token_ids) - 1


def test_decode_steps_go_on_while_a_save_is_held_back(open_system: OpenSystem) -> None:
    slow = HoldingFiles(path="*ledger.log")
    system = open_system(disk=slow)
    alice, bob = system.spawn("alice"), system.spawn("bob")

    held = alice.ask([1, 2], sampling=SHORT).get(timeout=WAIT)
    assert slow.reached.wait(WAIT)
    reply = bob.ask([3, 4], sampling=Sampling(max_tokens=30)).get(timeout=WAIT)
    second = alice.ask([5], sampling=SHORT).get(timeout=WAIT)

    assert reply.usage.generated_tokens > 0
    assert second.cache == "hot"
    assert not held.durable.done
    assert not system.wait_idle(0.05)
    slow.release.set()
    assert held.durable.get(timeout=WAIT) is True
    assert second.cached.get(timeout=WAIT) is True


def test_a_damaged_segment_is_set_aside_by_name_and_its_tokens_are_prefilled_again(
    open_system: OpenSystem, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    system = open_system()
    alice = system.spawn("alice")
    alice.ask([1] * 300, sampling=SHORT).get(timeout=WAIT)
    system.stop()
    segments = sorted((tmp_path / "store").rglob("seg-*"))
    data = bytearray(segments[-1].read_bytes())
    data[-1] ^= 1
    segments[-1].write_bytes(data)

    with caplog.at_level(logging.WARNING, logger="kvactors"):
        reply = open_system().spawn("alice").ask([2], sampling=SHORT).get(timeout=WAIT)

    assert reply.cache == "warm"
    assert reply.usage.reused_tokens == 256
    assert segments[-1].name in caplog.text


def test_bytes_written_stay_within_twice_the_final_size(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    system = open_system()
    alice = system.spawn("alice")
    for turn in range(60):
        alice.ask([1 + turn] * 14, sampling=SHORT).get(timeout=WAIT)
    assert system.wait_idle(WAIT)

    segments = list((tmp_path / "store").rglob("seg-*"))

    tokens = len(alice.transcript().token_ids) - 1
    final = tokens * system.spec.bytes_per_token
    assert sum(path.stat().st_size for path in segments) < 1.2 * final + 4096 * len(segments)
    assert len(segments) < 40


def test_an_agent_that_max_disk_evicted_while_hot_is_saved_whole_at_its_next_turn(
    open_system: OpenSystem, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = open_system()
    first.spawn("alice").ask([1] * 300, sampling=SHORT).get(timeout=WAIT)
    first.stop()
    size = sum(path.stat().st_size for path in (tmp_path / "store" / "kv").rglob("*.*"))
    system = open_system(max_disk=size * 3 // 2)
    alice, bob = system.spawn("alice"), system.spawn("bob")
    alice.ask([1], sampling=SHORT).get(timeout=WAIT).cached.get(timeout=WAIT)
    with caplog.at_level(logging.WARNING, logger="kvactors"):
        bob.ask([2] * 300, sampling=SHORT).get(timeout=WAIT).cached.get(timeout=WAIT)
    assert "the KV of 'alice'" in caplog.text

    reply = alice.ask([3], sampling=SHORT).get(timeout=WAIT)

    assert reply.cache == "hot"
    assert reply.cached.get(timeout=WAIT) is True
    transcript = alice.transcript()
    system.stop()
    warm = open_system().spawn("alice").ask([4], sampling=SHORT).get(timeout=WAIT)
    assert warm.cache == "warm"
    assert warm.usage.reused_tokens == len(transcript.token_ids) - 1


def test_an_encrypted_agent_comes_back_warm_with_its_key_and_not_at_all_without(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    key = bytes(range(32))
    first = open_system(encryption_key=key)
    first.spawn("alice").ask([1] * 300, sampling=SHORT).get(timeout=WAIT)
    first.stop()

    with pytest.raises(EncryptionError, match="is encrypted"):
        open_system()
    with pytest.raises(EncryptionError, match="another key"):
        open_system(encryption_key=bytes(32))
    with pytest.raises(InvalidConfig, match="32 bytes"):
        open_system(encryption_key=b"short")

    alice = open_system(encryption_key=lambda: key).spawn("alice")
    assert alice.ask([2], sampling=SHORT).get(timeout=WAIT).cache == "warm"


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


def test_a_slow_disk_holds_no_more_than_it_may(open_system: OpenSystem) -> None:
    slow = HoldingFiles(path="*ledger.log")
    system = open_system(disk=slow, max_unsaved=100_000)
    alice = system.spawn("alice")

    def talk() -> None:
        for turn in range(100):
            alice.ask([turn + 1] * 200, sampling=SHORT).get(timeout=WAIT)

    with pytest.raises(SaveQueueFull):
        talk()
    assert slow.reached.wait(WAIT)
    slow.release.set()

    assert system.wait_idle(WAIT)
    assert alice.ask([1], sampling=SHORT).get(timeout=WAIT).durable.get(timeout=WAIT) is True
    assert system.wait_idle(WAIT)
    assert system.health().unsaved_bytes == 0


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


def test_a_fork_whose_kv_had_no_room_on_disk_is_saved_whole_at_its_next_turn(
    open_system: OpenSystem,
) -> None:
    # Without links a fork needs as much room as its parent has.
    copying = FailingFiles(name="link", code=errno.EPERM)
    system = open_system(disk=copying, max_disk=150_000)
    system.spawn("alice").ask([1] * 200, sampling=SHORT).get(timeout=WAIT).cached.get(timeout=WAIT)

    for child in ("bob", "carol"):
        reply = system.spawn(child, from_="alice").ask([2], sampling=SHORT).get(timeout=WAIT)
        assert reply.cache == "hot"
        assert reply.cached.get(timeout=WAIT) is True

    assert copying.failed
