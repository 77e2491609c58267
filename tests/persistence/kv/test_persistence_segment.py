"""Segments: the safetensors format both ways, hostile files, and what is set aside."""

from __future__ import annotations

import json
import logging
import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import safetensors
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from kvactors.persistence import Save, Segment, Store
from kvactors.persistence.errors import SegmentUnreadable
from kvactors.persistence.files.packing import pack
from kvactors.persistence.files.segment import encode_segment, read_segment
from kvactors.persistence.kv.manifest import decode_manifest
from kvactors.persistence.testing.doubles import LyingFiles, Outcomes, example_segment

F = "cd" * 16
DTYPES = {"U8": 1, "BOOL": 1, "F16": 2, "BF16": 2, "U32": 4, "F32": 4, "I64": 8}
GOOD_META = {
    "format": "kvactors-segment", "version": "1", "start": "0", "end": "4",
    "tokens_hash": "", "layout": "",
}  # fmt: skip


def file_of(segment: Segment) -> bytes:
    return b"".join(encode_segment(segment)[0])


def read_bytes(folder: Path, data: bytes) -> Segment:
    path = folder / "segment"
    path.write_bytes(data)
    return read_segment(path, len(data), xxhash.xxh3_128_hexdigest(data))


def with_header(header: Any, body: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + body


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    tensors = []
    for name in draw(st.lists(st.text(min_size=1, max_size=8), max_size=5, unique=True)):
        dtype = draw(st.sampled_from(sorted(DTYPES)))
        shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
        size = DTYPES[dtype]
        for dim in shape:
            size *= dim
        tensors.append((name, dtype, shape, draw(st.binary(min_size=size, max_size=size))))
    tensors = [tensor for tensor in tensors if tensor[0] != "__metadata__"]
    start = draw(st.integers(0, 2**40))
    hashed, layout = draw(st.text(max_size=8)), draw(st.text(max_size=8))
    return Segment(start, start + draw(st.integers(1, 256)), hashed, layout, tuple(tensors))


@settings(max_examples=60)
@given(segment=segments())
def test_any_segment_comes_back_as_it_was(
    segment: Segment, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chunks, digest, size = encode_segment(segment)
    path = tmp_path_factory.getbasetemp() / "round-trip"
    path.write_bytes(b"".join(chunks))

    assert read_segment(path, size, digest) == segment
    assert encode_segment(segment)[1] == digest, "the same segment is the same file"


def test_the_safetensors_library_reads_our_files(tmp_path: Path) -> None:
    segment = example_segment(0, 7)
    path = tmp_path / "s.safetensors"
    path.write_bytes(file_of(segment))

    found = dict(safetensors.deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
    with safetensors.safe_open(path, framework="numpy") as opened:
        metadata = opened.metadata()

    for name, dtype, shape, data in segment.tensors:
        assert found[name]["dtype"] == dtype
        assert tuple(found[name]["shape"]) == shape
        assert bytes(found[name]["data"]) == data
    assert metadata["format"] == "kvactors-segment"
    assert metadata["layout"] == segment.layout


def test_wide_items_stand_first_so_that_every_tensor_is_aligned() -> None:
    odd = Segment(0, 1, "", "", (("a", "U8", (3,), b"abc"), ("b", "U32", (1,), b"1234")))

    data = file_of(odd)

    (length,) = struct.unpack("<Q", data[:8])
    assert length % 8 == 0
    assert data[8 + length :] == b"1234abc"


def test_tensors_that_contradict_themselves_are_refused_before_any_write() -> None:
    for tensors in [
        (("a", "U32", (2,), b"1234"),),
        (("a", "U99", (1,), b"1234"),),
        (("a", "U8", (1,), b"1"), ("a", "U8", (1,), b"1")),
        (("__metadata__", "U8", (1,), b"1"),),
        (("a", "U8", (-1,), b""),),
    ]:
        with pytest.raises(SegmentUnreadable, match="tensor"):
            encode_segment(Segment(0, 1, "", "", tensors))


def entry(begin: Any = 0, end: Any = 4, dtype: Any = "U8", shape: Any = (4,)) -> Any:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HOSTILE = {
    "empty": b"",
    "short": b"\0\0\0",
    "header larger than the file": struct.pack("<Q", 1 << 20) + b"{}",
    "header of 16 EiB": b"\xff" * 8 + b"{}",
    "header is no JSON": with_header(b"\xff\xfe{"),
    "header nested deeply": with_header(b"[" * 100_000),
    "header is a list": with_header([1]),
    "header with a long number": with_header(b'{"a": ' + b"9" * 5000 + b"}"),
    "no metadata": with_header({"a": entry()}, b"1234"),
    "metadata is a list": with_header({"__metadata__": [], "a": entry()}, b"1234"),
    "version 0": with_header({"__metadata__": {**GOOD_META, "version": "0"}}),
    "version of 5,000 digits": with_header({"__metadata__": {**GOOD_META, "version": "9" * 5000}}),
    "start is no number": with_header({"__metadata__": {**GOOD_META, "start": "x"}}),
    "no layout": with_header(
        {"__metadata__": {key: GOOD_META[key] for key in GOOD_META if key != "layout"}}
    ),
    "entry is a number": with_header({"__metadata__": GOOD_META, "a": 3}, b"1234"),
    "no offsets": with_header({"__metadata__": GOOD_META, "a": {"dtype": "U8", "shape": [4]}}),
    "offsets are floats": with_header({"__metadata__": GOOD_META, "a": entry(0.0, 4.0)}, b"1234"),
    "offsets backwards": with_header({"__metadata__": GOOD_META, "a": entry(4, 0)}, b"1234"),
    "offsets behind the end": with_header({"__metadata__": GOOD_META, "a": entry(0, 9)}, b"1234"),
    "a hole": with_header({"__metadata__": GOOD_META, "a": entry(1, 5)}, b"12345"),
    "bytes that no tensor has": with_header({"__metadata__": GOOD_META, "a": entry()}, b"12345"),
    "overlap": with_header(
        {"__metadata__": GOOD_META, "a": entry(), "b": entry(2, 6)}, b"123456"
    ),
    "unknown dtype": with_header({"__metadata__": GOOD_META, "a": entry(dtype="Q4")}, b"1234"),
    "dtype is a list": with_header({"__metadata__": GOOD_META, "a": entry(dtype=[])}, b"1234"),
    "shape too large": with_header({"__metadata__": GOOD_META, "a": entry(shape=[5])}, b"1234"),
    "shape overflows": with_header(
        {"__metadata__": GOOD_META, "a": entry(shape=[2**63, 2**63])}, b"1234"
    ),
    "shape of many dims": with_header(
        {"__metadata__": GOOD_META, "a": entry(shape=[1] * 1000)}, b"1234"
    ),
    "shape negative": with_header({"__metadata__": GOOD_META, "a": entry(shape=[-2, -2])}, b"1234"),
    "shape of bools": with_header({"__metadata__": GOOD_META, "a": entry(shape=[True])}, b"1"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_without_a_large_allocation(tmp_path: Path, case: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(SegmentUnreadable):
            read_bytes(tmp_path, HOSTILE[case])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 4 << 20


@settings(max_examples=200)
@given(
    places=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4)
)
def test_any_damage_with_a_matching_checksum_ends_in_a_segment_or_the_one_error(
    places: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(file_of(example_segment(0, 2)))
    for place, value in places:
        data[place % len(data)] = value

    with suppress(SegmentUnreadable):
        read_bytes(tmp_path_factory.getbasetemp(), bytes(data))


@given(st.binary(max_size=100))
def test_any_bytes_are_a_manifest_or_the_one_error(data: bytes) -> None:
    with pytest.raises(SegmentUnreadable):
        decode_manifest(data, Path("manifest"))


def test_a_manifest_cannot_name_a_path() -> None:
    body = pack(
        {
            "agent_id": "a", "fingerprint": F, "ledger_bytes": 0, "ledger_checksum": 0,
            "segments": [[0, 4, "../../etc/passwd", 1, "", ""]],
        }
    )  # fmt: skip
    data = pack([b"KVAM", 1, xxhash.xxh3_64_intdigest(body), body])

    with pytest.raises(SegmentUnreadable, match="no segment name"):
        decode_manifest(data, Path("manifest"))


def stored(tmp_path: Path) -> tuple[Store, list[Path]]:
    """A store with three segments of agent "a": [0, 4), [4, 8), [8, 12)."""
    store = Store(tmp_path)
    parts = tuple(example_segment(n, n + 4) for n in (0, 4, 8))
    Outcomes().commit(store, Save("a", ({"turn": 1},), F, parts))
    return store, sorted((tmp_path / "kv").rglob("seg-*"), key=lambda path: path.name)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def other_version(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"version":"1"', b'"version":"2"'))


@pytest.mark.parametrize("damage", [flip, cut, other_version, Path.unlink])
def test_a_bad_segment_is_set_aside_and_what_precedes_it_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Any
) -> None:
    store, paths = stored(tmp_path)
    damage(paths[1])

    with caplog.at_level(logging.WARNING, "kvactors"):
        found = store.read_kv("a", F)

    assert found == (example_segment(0, 4),)
    assert paths[1].name in caplog.text
    assert paths[1].with_name(paths[1].name + ".bad").exists() == (damage is not Path.unlink)
    assert paths[0].exists()
    assert not paths[1].exists()
    assert not paths[2].exists()
    assert store.kv_extent("a", F) == 4
    outcomes = Outcomes()
    outcomes.commit(store, Save("a", ({"turn": 2},), F, (example_segment(4, 9),)))
    assert outcomes.cached
    assert store.read_kv("a", F) == (example_segment(0, 4), example_segment(4, 9))
    assert len(store.read_ledger("a") or ()) == 2
    store.close()


@pytest.mark.parametrize("damage", [flip, cut])
def test_a_bad_manifest_is_set_aside_and_the_agent_is_cold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Any
) -> None:
    store, paths = stored(tmp_path)
    store.close()
    manifest = paths[0].with_name("manifest.msgpack")
    damage(manifest)

    with caplog.at_level(logging.WARNING, "kvactors"):
        again = Store(tmp_path)
        assert again.read_kv("a", F) == ()

    assert str(manifest) in caplog.text
    assert again.read_ledger("a") == ({"turn": 1},)
    assert [path.name for path in manifest.parent.iterdir()] == ["manifest.msgpack.bad"]
    again.forget("a")
    assert not list((tmp_path / "kv").rglob("*"))
    again.close()


@pytest.mark.parametrize("how", ["flip", "drop"])
def test_a_disk_that_lies_about_segments_costs_time_and_no_content(
    tmp_path: Path, how: str
) -> None:
    store = Store(tmp_path, files=LyingFiles(path="*/seg-*", how=how))
    outcomes = Outcomes()
    outcomes.commit(store, Save("a", ({"turn": 1},), F, (example_segment(0, 4),)))

    assert outcomes.cached, "it could not know"
    assert store.read_kv("a", F) == ()
    assert store.read_ledger("a") == ({"turn": 1},)
    store.close()


def test_another_agents_segment_in_this_ones_place_is_not_used(tmp_path: Path) -> None:
    store, paths = stored(tmp_path)
    paths[0].write_bytes(file_of(example_segment(0, 4, seed=5)))

    assert store.read_kv("a", F) == ()
    store.close()
