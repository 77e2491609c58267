"""Files of a newer format version: refused, and left exactly as they are."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import pytest
import xxhash
from store_saves import F1, kv_save, put

from kvactors.persistence import EncryptionMismatch, NewerFormat, Store, WrongKey
from kvactors.persistence.files.naming import segment_name
from kvactors.persistence.kv.manifest import Entry, Manifest, encode_manifest
from kvactors.persistence.testing.doubles import example_segment

SEGMENT = example_segment(0, 8)
NEXT = example_segment(8, 10)
KEY = b"k" * 32


@pytest.fixture
def key(request: pytest.FixtureRequest) -> bytes | None:
    """Of the store: none, unless a test says so."""
    return getattr(request, "param", None)


@pytest.fixture
def root(tmp_path: Path, key: bytes | None) -> Path:
    """A closed store with an agent "a" of one turn, and "b" beside it."""
    store = Store(tmp_path, encryption_key=key)
    put(store, kv_save("a", SEGMENT), kv_save("b", SEGMENT, NEXT))
    store.close()
    return tmp_path


def newer_manifest(root: Path) -> Path:
    [path] = root.rglob("a-*/manifest.msgpack")
    path.write_bytes(msgpack.packb([b"KVAM", 2, {"whatever": [1, 2]}]))
    return path


def newer_segment(root: Path) -> Path:
    """A whole segment of version 2 that a manifest of version 1 names."""
    [old] = root.rglob("a-*/seg-*")
    data = old.read_bytes().replace(b'"version":"1"', b'"version":"2"')
    digest = xxhash.xxh3_128_hexdigest(data)
    path = old.with_name(segment_name(0, 8, digest))
    old.unlink()
    path.write_bytes(data)
    entry = Entry(0, 8, path.name, len(data), digest, "")
    manifest = Manifest("a", F1, 0, 0, (entry,))
    path.with_name("manifest.msgpack").write_bytes(encode_manifest(manifest))
    return path


def newly_sealed_manifest(root: Path) -> Path:
    [path] = root.rglob("a-*/manifest.msgpack")
    magic, version, _, body = msgpack.unpackb(path.read_bytes())
    body = newly_sealed(body)
    path.write_bytes(msgpack.packb([magic, version, xxhash.xxh3_64_intdigest(body), body]))
    return path


def newly_sealed_ledger(root: Path) -> Path:
    """Its last frame is."""
    [path] = root.rglob("a-*/ledger.log")
    data = path.read_bytes()
    last = data.rindex(b"KVAL")
    path.write_bytes(data[:last] + newly_sealed_frame(data[last:]))
    return path


def newly_sealed_header(root: Path, agent: str) -> None:
    """The first frame of an agent's ledger is."""
    [path] = root.rglob(f"{agent}/ledger.log")
    data = path.read_bytes()
    second = data.index(b"KVAL", 4)
    path.write_bytes(newly_sealed_frame(data[:second]) + data[second:])


def newly_sealed_frame(frame: bytes) -> bytes:
    payload = newly_sealed(frame[40:])
    fields = frame[:24] + struct.pack("<Q", xxhash.xxh3_64_intdigest(payload))
    return fields + struct.pack("<Q", xxhash.xxh3_64_intdigest(fields)) + payload


def newly_sealed(data: bytes) -> bytes:
    """What version 2 of encryption may make of it."""
    assert data.startswith(b"KVAS\1")
    return data.replace(b"KVAS\1", b"KVAS\2", 1)


def newer_ledger(root: Path) -> Path:
    [path] = root.rglob("a-*/ledger.log")
    data = path.read_bytes()
    fields = struct.pack("<4sBBHIIQQ", b"KVAL", 2, 1, 0, 1, 0, 2, 0)
    path.write_bytes(data + fields + struct.pack("<Q", xxhash.xxh3_64_intdigest(fields)))
    return path


def files(root: Path) -> dict[str, bytes]:
    paths = [path for path in root.rglob("*") if path.is_file() and path.name != "store.lock"]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (newer_manifest, None),
        (newer_segment, None),
        (newly_sealed_manifest, KEY),
    ],
    indirect=["key"],
)
def test_newer_kv_is_neither_used_nor_touched_and_the_ledger_goes_on(
    root: Path,
    key: bytes | None,
    caplog: pytest.LogCaptureFixture,
    make: Callable[[Path], Path],
) -> None:
    path = make(root)
    before = files(root / "kv")
    store = Store(root, encryption_key=key)

    assert store.read_kv("a", F1) == ()
    outcomes = put(store, kv_save("a", SEGMENT))
    store.sweep()
    store.gc()

    assert store.kv_extent("a", F1) == 0
    [(_, part, error)] = outcomes.failed
    assert part == "kv"
    assert isinstance(error, NewerFormat)
    assert error.path == path
    assert str(path) in caplog.text
    assert "format version 2" in caplog.text
    assert "upgrade kvactors" in caplog.text
    assert store.read_ledger("a") == ({"n": 8}, {"n": 8})
    assert files(root / "kv") == before
    assert store.read_kv("b", F1) == (SEGMENT, NEXT)
    [problem] = store.verify()
    assert (problem.agent_id, problem.path) == ("a", path)
    store.close()


def test_newer_kv_is_not_evicted_but_can_be_forgotten(root: Path) -> None:
    path = newer_manifest(root)
    store = Store(root, max_disk=2000)

    outcomes = put(store, kv_save("c", example_segment(0, 100, seed=1)))

    assert not outcomes.failed
    assert path.exists()
    assert store.kv_extent("b", F1) == 0
    store.forget("a")
    assert not path.exists()
    store.close()


@pytest.mark.parametrize(
    ("make", "key"), [(newer_ledger, None), (newly_sealed_ledger, KEY)], indirect=["key"]
)
def test_a_newer_ledger_refuses_its_agent_alone_and_stays_as_it_is(
    root: Path, key: bytes | None, make: Callable[[Path], Path]
) -> None:
    path = make(root)
    before = path.read_bytes()
    store = Store(root, encryption_key=key)

    with pytest.raises(NewerFormat, match="format version 2, and this kvactors reads up to 1"):
        store.read_ledger("a")
    outcomes = put(store, kv_save("a", SEGMENT), kv_save("b", SEGMENT))

    assert [type(error) for _, _, error in outcomes.failed] == [NewerFormat]
    assert path.read_bytes() == before
    problems = {agent.agent_id: agent.problem for agent in store.agents()}
    assert "upgrade kvactors" in str(problems["a"])
    assert problems["b"] is None
    store.close()


@pytest.mark.parametrize("key", [KEY], indirect=True)
def test_a_store_that_a_newer_version_sealed_wants_its_key(root: Path, key: bytes) -> None:
    for agent in ("a-*", "b-*"):
        newly_sealed_header(root, agent)

    with pytest.raises(EncryptionMismatch):
        Store(root)
    with pytest.raises(WrongKey):
        Store(root, encryption_key=b"x" * 32)
    store = Store(root, encryption_key=key)
    with pytest.raises(NewerFormat):
        store.read_ledger("a")
    store.close()


@pytest.mark.parametrize("key", [KEY], indirect=True)
def test_a_copy_of_a_record_that_a_newer_version_sealed_is_not_stored(
    root: Path, key: bytes
) -> None:
    store = Store(root, encryption_key=key)
    copies = [newly_sealed(copy) for copy in store.records.read("a")]

    with pytest.raises(NewerFormat, match="record 0 of 'a' has format version 2"):
        store.records.append("c", 0, copies, of="a")

    assert not store.has("c")
    store.close()
