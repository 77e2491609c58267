"""Encryption at rest: nothing readable on disk, and nothing that was moved or altered opens."""

from __future__ import annotations

import secrets
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import DAY
from store_saves import F1, Unsynced, put

from kvactors.persistence import (
    EncryptionError,
    EncryptionMismatch,
    LedgerUnreadable,
    Save,
    Segment,
    Store,
    WrongKey,
)
from kvactors.persistence.files.encryption import PIECE, BrokenSeal, Sealing
from kvactors.persistence.testing.doubles import example_segment

KEY, OTHER = bytes(range(32)), bytes(32)
F2 = "1" * 16
HEADER = 40
SECRET = "My cat is called Biscuit."
TOKENS = b"tokens of the cat" * 3
SEGMENTS = (example_segment(0, 256, seed=1), example_segment(256, 300, seed=2))


def open_store(root: Path, key: bytes | None = KEY) -> Store:
    return Store(root, files=Unsynced(), encryption_key=key)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed, encrypted store: two agents, two turns each, KV under two models."""
    path = tmp_path / "store"
    store = open_store(path)
    for agent in ("alice", "bob"):
        said = {"text": f"{SECRET} {agent}", "ids": TOKENS}
        put(store, Save(agent, (said,), F1, SEGMENTS))
        put(store, Save(agent, ({"turn": 2},), F2, (example_segment(0, 8, seed=ord(agent[0])),)))
    store.close()
    return path


def one(root: Path, pattern: str) -> Path:
    [path] = root.glob(pattern)
    return path


def test_everything_comes_back_with_the_key(root: Path) -> None:
    store = Store(root, encryption_key=lambda: KEY)

    for agent in ("alice", "bob"):
        records = ({"text": f"{SECRET} {agent}", "ids": TOKENS}, {"turn": 2})
        assert store.read_ledger(agent) == records
        assert store.read_kv(agent, F1) == SEGMENTS
        assert store.read_kv(agent, F2) == (example_segment(0, 8, seed=ord(agent[0])),)
        assert store.kv_extent(agent, F1) == 300
    assert [agent.agent_id for agent in store.agents()] == ["alice", "bob"]
    assert not list(store.verify())
    store.close()


def test_no_file_holds_anything_in_plain_text(root: Path) -> None:
    tensors = [data for segment in SEGMENTS for *_, data in segment.tensors]
    words = [
        SECRET.encode(), b"Biscuit", TOKENS[:8], b"agent_id", b"ledger_bytes", b"tokens_hash",
        SEGMENTS[0].layout.encode(), b"layers.0", *(data[at : at + 8] for data in tensors
                                                    for at in range(0, len(data) - 8, 64)),
    ]  # fmt: skip

    for path in root.rglob("*.*"):
        data = path.read_bytes()
        assert not [word for word in words if word in data], path


def test_equal_segments_are_shared_and_equal_ledgers_differ(root: Path) -> None:
    assert one(root, f"kv/{F1}/alice-*/seg-0-256-*").stat().st_nlink == 2
    ledgers = [path.read_bytes() for path in root.glob("agents/*/ledger.log")]
    assert ledgers[0][-64:] != ledgers[1][-64:]
    store = open_store(root)
    store.fork("alice", "child")
    store.forget("alice")
    assert store.read_kv("child", F1) == SEGMENTS
    assert len(store.read_ledger("child") or ()) == 2
    assert not list(store.verify())
    store.close()


def test_another_key_no_key_and_a_key_too_many_are_told_apart(root: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    store = Store(plain)
    put(store, Save("a", ({"n": 1},), None, ()))
    store.close()

    with pytest.raises(WrongKey, match="another key"):
        open_store(root, OTHER)
    with pytest.raises(EncryptionMismatch, match="is encrypted: pass"):
        open_store(root, None)
    with pytest.raises(EncryptionMismatch, match="is not encrypted"):
        open_store(plain)

    open_store(root).close()
    Store(plain).close()


def test_a_callable_that_raises_is_an_error_of_the_key(tmp_path: Path) -> None:
    def vault() -> bytes:
        raise RuntimeError("the vault is down")

    with pytest.raises(EncryptionError, match="RuntimeError: the vault is down"):
        Store(tmp_path, encryption_key=vault)


@pytest.mark.parametrize("key", [b"short", bytes(33), "x" * 32, lambda: b"", 7])
def test_what_is_no_key_is_refused(tmp_path: Path, key: object) -> None:
    with pytest.raises(EncryptionError, match="32 bytes"):
        Store(tmp_path, encryption_key=key)  # type: ignore[arg-type]


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)

    with pytest.raises(EncryptionError, match=r"pip install 'kvactors\[crypto\]'"):
        Store(tmp_path, encryption_key=KEY)


def test_the_key_is_in_no_repr_and_no_message(root: Path) -> None:
    assert "0" * 8 not in repr(Sealing(KEY))
    with pytest.raises(WrongKey) as caught:
        open_store(root, OTHER)
    assert OTHER.hex() not in str(caught.value)


def move(source: str, target: str) -> Callable[[Path], None]:
    """Put a file where another of its kind was, names kept."""

    def act(root: Path) -> None:
        shutil.copyfile(one(root, source), one(root, target))

    return act


SWAPS = {
    "another agent's ledger": move("agents/bob-*/ledger.log", "agents/alice-*/ledger.log"),
    "another agent's manifest": move(
        f"kv/{F1}/bob-*/manifest.msgpack", f"kv/{F1}/alice-*/manifest.msgpack"
    ),
    "another model's manifest": move(
        f"kv/{F2}/alice-*/manifest.msgpack", f"kv/{F1}/alice-*/manifest.msgpack"
    ),
    "another segment": move(f"kv/{F1}/bob-*/seg-256-*", f"kv/{F2}/alice-*/seg-0-8-*"),
    "another agent's segment": move(f"kv/{F2}/bob-*/seg-*", f"kv/{F2}/alice-*/seg-*"),
}


@pytest.mark.parametrize("what", SWAPS)
def test_a_file_in_anothers_place_does_not_open(root: Path, what: str) -> None:
    SWAPS[what](root)
    store = open_store(root)

    assert list(store.verify())
    check_not_wrong(store)
    assert store.read_kv("bob", F1) == SEGMENTS
    store.close()


def check_not_wrong(store: Store) -> None:
    """Alice has her own memory, some of it, or a refusal; some of it is gone."""
    whole = {F1: SEGMENTS, F2: (example_segment(0, 8, seed=ord("a")),)}
    found: list[tuple[Segment, ...]] = []
    for fingerprint, segments in whole.items():
        found.append(store.read_kv("alice", fingerprint))
        assert found[-1] in [segments[:n] for n in range(len(segments) + 1)]
    try:
        records = store.read_ledger("alice")
        assert records == ({"text": f"{SECRET} alice", "ids": TOKENS}, {"turn": 2})
    except LedgerUnreadable:
        return
    assert found != list(whole.values())


def test_frames_of_a_ledger_cannot_be_moved_within_it(root: Path) -> None:
    """With all checksums made right again, and no manifest to tell."""
    path = one(root, "agents/alice-*/ledger.log")
    shutil.rmtree(root / "kv")
    data = path.read_bytes()
    moved = bytearray(frames_of(data)[1])
    moved[16:24] = struct.pack("<Q", 3)
    moved[32:40] = struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(moved[:32])))
    path.write_bytes(data + moved)
    store = open_store(root)

    with pytest.raises(LedgerUnreadable, match="frame 3"):
        store.read_ledger("alice")

    store.close()


def test_a_frame_of_another_agents_ledger_does_not_open_in_the_same_place(root: Path) -> None:
    """Its checksums are right, it is sealed with the key of the store, and no manifest tells."""
    mine, other = (one(root, f"agents/{agent}-*/ledger.log") for agent in ("alice", "bob"))
    shutil.rmtree(root / "kv")
    frames = [frames_of(path.read_bytes()) for path in (mine, other)]
    mine.write_bytes(b"".join([frames[0][0], frames[1][1], frames[0][2]]))
    store = open_store(root)

    with pytest.raises(LedgerUnreadable, match="frame 1: it was altered, or belongs elsewhere"):
        store.read_ledger("alice")

    assert len(store.read_ledger("bob") or ()) == 2
    store.close()


def frames_of(ledger: bytes) -> list[bytes]:
    found = []
    while ledger:
        end = 40 + struct.unpack_from("<I", ledger, 12)[0]
        found.append(ledger[:end])
        ledger = ledger[end:]
    return found


def test_a_flipped_bit_anywhere_is_noticed(root: Path, tmp_path: Path) -> None:
    """In each part of a file's header, and at places that the day draws."""
    draw = Random(f"{DAY} flipped bits")
    for path in sorted(root.rglob("alice-*/*")):
        data = path.read_bytes()
        for place in {*range(0, HEADER, 4), *draw.sample(range(len(data)), 10)}:
            copy = tmp_path / "copy"
            shutil.copytree(root, copy)
            flipped = data[place] ^ 1 << place % 8
            changed = data[:place] + bytes([flipped]) + data[place + 1 :]
            (copy / path.relative_to(root)).write_bytes(changed)
            store = open_store(copy)

            check_not_wrong(store)

            store.close()
            shutil.rmtree(copy)


def test_plain_files_in_an_encrypted_store_are_not_believed(root: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "forged")
    put(store, Save("alice", ({"text": "forged"},), F1, SEGMENTS[:1]))
    store.close()
    for kind in ("agents", f"kv/{F1}"):
        target = one(root, f"{kind}/alice-*")
        shutil.rmtree(target)
        shutil.copytree(one(tmp_path / "forged", f"{kind}/alice-*"), target)

    shutil.rmtree(one(root, f"kv/{F2}/alice-*"))
    again = open_store(root)

    assert again.read_kv("alice", F1) == ()
    with pytest.raises(LedgerUnreadable, match="not sealed"):
        again.read_ledger("alice")
    assert again.read_kv("bob", F1) == SEGMENTS
    again.close()


@settings(max_examples=30)
@given(
    size=st.sampled_from([0, 1, 17, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 5]),
)
def test_sealed_bytes_of_any_size_come_back_whole_or_not_at_all(size: int) -> None:
    sealing, plain = Sealing(KEY), secrets.token_bytes(size)
    chunks = [plain[: size // 3], plain[size // 3 :]]

    sealed = b"".join(sealing.seal(b"place", chunks))

    assert len(sealed) == Sealing.sealed_size(size)
    assert sealing.open_bytes(b"place", sealed) == plain
    for wrong in (sealed[:-1], sealed + b"x", sealed[: -(PIECE + 16)] if size > PIECE else b""):
        with pytest.raises(BrokenSeal):
            sealing.open_bytes(b"place", wrong)
    with pytest.raises(BrokenSeal):
        sealing.open_bytes(b"elsewhere", sealed)
    with pytest.raises(BrokenSeal):
        Sealing(OTHER).open_bytes(b"place", sealed)
