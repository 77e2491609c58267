"""What an agent's owner sees when the disk is full, slow, or lies."""

import errno
import logging
import re
from pathlib import Path

import pytest
from makers import OpenSystem

from kvactors.actors import EncryptionError, Sampling, SaveFailed, SaveQueueFull
from kvactors.actors.testing import FailingFiles, HoldingFiles
from kvactors.core.errors import InvalidConfig

SHORT = Sampling(max_tokens=6)
WAIT = 60


@pytest.mark.parametrize("path", ["*ledger.log", "*seg-*", "*manifest*"])
def test_on_a_full_disk_the_reply_arrives_and_a_later_save_makes_up_for_it(
    open_system: OpenSystem, tmp_path: Path, path: str
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
    health = system.health()
    assert health.storage == "failing"
    root = re.escape(str((tmp_path / "store").resolve()))
    assert re.search(rf"No space left.*: \d+ bytes are free at {root}$", health.storage_error)
    full.armed = False
    reply = alice.ask([4], sampling=SHORT).get(timeout=WAIT)

    assert reply.durable.get(timeout=WAIT) is True
    assert reply.cached.get(timeout=WAIT) is True
    assert (system.health().storage, system.health().storage_error) == ("ok", "")
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


def test_whose_kv_made_room_for_an_import_is_saved_whole_at_its_next_turn(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    first = open_system()
    first.spawn("bob").ask([2] * 300, sampling=SHORT).get(timeout=WAIT)
    first.wait_idle()
    first.export_agent("bob", tmp_path / "bob.kva")
    first.forget("bob")
    first.spawn("alice").ask([1] * 300, sampling=SHORT).get(timeout=WAIT)
    first.stop()
    size = sum(path.stat().st_size for path in (tmp_path / "store" / "kv").rglob("*.*"))
    system = open_system(max_disk=size * 3 // 2)
    alice = system.spawn("alice")
    alice.ask([1], sampling=SHORT).get(timeout=WAIT).cached.get(timeout=WAIT)

    system.import_agent(tmp_path / "bob.kva", "bob")
    reply = alice.ask([3], sampling=SHORT).get(timeout=WAIT)

    assert reply.cache == "hot"
    assert reply.cached.get(timeout=WAIT) is True


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
