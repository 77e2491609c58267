"""The ledger's frames: what is torn, what is damaged, and what is kept."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvactors.persistence import LedgerUnreadable, Save, Store
from kvactors.persistence.files.naming import encode_agent_id
from kvactors.persistence.ledger.frames import (
    Mark,
    encode_header,
    encode_records,
    scan,
)
from kvactors.persistence.ledger.records import decode_records
from kvactors.persistence.testing.doubles import (
    HoldingFiles,
    Outcomes,
    PowerLossFiles,
    example_segment,
)

F = "ab" * 16
PATH = Path("ledger.log")
FRAMES = [
    encode_header("alice", None),
    *(encode_records([{"turn": n, "text": "word " * n}], n, "alice", None) for n in range(1, 5)),
]
DATA = b"".join(FRAMES)
LAST = len(DATA) - len(FRAMES[-1])


def turns(data: bytes, *marks: Mark) -> list[int]:
    return [record["turn"] for record in decode_records(scan(data, PATH, marks), PATH)]


def test_whole_frames_give_their_records() -> None:
    found = scan(DATA, PATH)

    assert found.torn is None
    assert found.length == len(DATA)
    assert found.records == 4
    assert turns(DATA) == [1, 2, 3, 4]


def test_a_last_frame_torn_at_any_byte_is_cut() -> None:
    for end in range(LAST, len(DATA)):
        found = scan(DATA[:end], PATH)

        assert turns(DATA[:end]) == [1, 2, 3]
        assert found.length == LAST
        assert (found.torn is None) == (end == LAST)


def test_a_last_frame_whose_pages_came_out_of_order_is_cut() -> None:
    size = len(DATA) - LAST
    for hole in range(0, size, 8):
        data = bytearray(DATA)
        data[LAST + hole :] = bytes(size - hole)
        assert turns(bytes(data)) == [1, 2, 3], "zeros behind"
        data = bytearray(DATA)
        data[LAST : LAST + hole + 1] = bytes(hole + 1)
        assert turns(bytes(data)) == [1, 2, 3], "zeros before"


def test_a_flipped_bit_at_any_byte_of_an_earlier_frame_is_an_error() -> None:
    for place in range(LAST):
        data = bytearray(DATA)
        data[place] ^= 1 << place % 8

        with pytest.raises(LedgerUnreadable):
            scan(bytes(data), PATH)


def test_a_flipped_bit_in_a_last_frame_that_a_manifest_saw_is_an_error() -> None:
    mark = Mark(len(DATA), scan(DATA, PATH).frames[-1].checksum, "manifest")
    for place in range(LAST, len(DATA)):
        data = bytearray(DATA)
        data[place] ^= 1 << place % 8

        assert turns(bytes(data)) == [1, 2, 3]
        with pytest.raises(LedgerUnreadable, match="manifest"):
            scan(bytes(data), PATH, [mark])


def test_a_ledger_shorter_than_a_manifest_saw_is_an_error() -> None:
    mark = Mark(len(DATA), scan(DATA, PATH).frames[-1].checksum, "the manifest")

    assert turns(DATA, mark) == [1, 2, 3, 4]
    for end in range(len(DATA)):
        with pytest.raises(LedgerUnreadable):
            scan(DATA[:end], PATH, [mark])
    with pytest.raises(LedgerUnreadable, match=r"bytes of the .* that the manifest saw"):
        scan(DATA[:LAST], PATH, [mark])


def test_another_ledger_of_the_same_length_is_an_error() -> None:
    mark = Mark(len(DATA), scan(DATA, PATH).frames[-1].checksum ^ 1, "the manifest")

    with pytest.raises(LedgerUnreadable, match="not the ledger that the manifest saw"):
        scan(DATA, PATH, [mark])


def test_a_frame_that_is_lost_repeated_or_moved_is_an_error() -> None:
    for order in ([0, 1, 3, 4], [0, 1, 1, 2], [1, 2], [0, 2, 1, 3], [0, 0, 1]):
        with pytest.raises(LedgerUnreadable, match="stands where"):
            scan(b"".join(FRAMES[n] for n in order), PATH)


def test_an_empty_file_and_a_file_of_garbage_are_errors() -> None:
    for data in (b"", b"\0" * 4096, b"not a ledger" * 100):
        with pytest.raises(LedgerUnreadable):
            scan(data, PATH)


@given(st.binary(max_size=300))
def test_any_bytes_behind_whole_frames_are_cut_or_an_error(tail: bytes) -> None:
    assert turns(DATA + tail) == [1, 2, 3, 4]


@given(st.binary(max_size=400))
def test_any_bytes_end_in_records_or_in_the_one_error(data: bytes) -> None:
    with pytest.raises(LedgerUnreadable):
        scan(data, PATH)


RECORDS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=5,
    ),
    max_size=3,
)


@given(st.lists(st.lists(RECORDS, max_size=3), max_size=3))
def test_records_come_back_as_they_were(saves: list[list[dict[str, Any]]]) -> None:
    frames = [encode_records(records, n, "alice", None) for n, records in enumerate(saves, start=1)]

    found = scan(b"".join([encode_header("a", None), *frames]), PATH)

    assert list(decode_records(found, PATH)) == [record for save in saves for record in save]


def test_lone_surrogates_pass() -> None:
    data = encode_header("\udc80", None) + encode_records([{"text": "a\ud800b"}], 1, "alice", None)

    assert decode_records(scan(data, PATH), PATH) == ({"text": "a\ud800b"},)


def put(store: Store, agent: str, turn: int, *, kv: bool = False) -> Outcomes:
    outcomes = Outcomes()
    segments = (example_segment(0, 4, seed=turn),) if kv else ()
    outcomes.commit(store, Save(agent, ({"turn": turn},), F if kv else None, segments))
    return outcomes


def ledger_of(store: Store, agent: str) -> Path:
    return store.root / "agents" / encode_agent_id(agent) / "ledger.log"


def test_a_torn_tail_is_warned_of_and_cut_before_the_next_append(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    for turn in (1, 2, 3):
        put(store, "a", turn)
    path = ledger_of(store, "a")
    store.close()
    path.write_bytes(path.read_bytes()[:-1])

    again = Store(tmp_path)
    with caplog.at_level(logging.WARNING, "kvactors"):
        assert again.read_ledger("a") == ({"turn": 1}, {"turn": 2})
    put(again, "a", 4)

    assert str(path) in caplog.text
    assert again.read_ledger("a") == ({"turn": 1}, {"turn": 2}, {"turn": 4})
    assert scan(path.read_bytes(), path).torn is None
    again.close()


def test_a_torn_tail_is_off_the_medium_before_the_next_append(tmp_path: Path) -> None:
    put(store := Store(tmp_path), "a", 1)
    path = ledger_of(store, "a")
    store.close()
    whole = path.read_bytes()
    path.write_bytes(whole + FRAMES[2][:50])
    disk = PowerLossFiles()
    files = HoldingFiles(disk, name="append", path="*/ledger.log")

    again = Store(tmp_path, files=files)
    thread = threading.Thread(target=put, args=(again, "a", 2))
    thread.start()
    assert files.reached.wait(10)
    disk.lose_power()
    left = path.read_bytes()
    files.release.set()
    thread.join(10)
    again.close()

    assert left == whole


def test_a_damaged_ledger_is_an_error_for_its_agent_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for turn in (1, 2):
        put(store, "a", turn)
        put(store, "b", turn)
    path = ledger_of(store, "a")
    store.close()
    data = bytearray(path.read_bytes())
    data[len(encode_header("a", None)) + 45] ^= 1
    path.write_bytes(data)

    again = Store(tmp_path)

    with pytest.raises(LedgerUnreadable, match="checksum"):
        again.read_ledger("a")
    [(_, part, error)] = put(again, "a", 3).failed
    assert part == "ledger"
    assert isinstance(error, LedgerUnreadable)
    assert path.read_bytes() == data, "the evidence is left as it is"
    assert not put(again, "b", 3).failed
    problems = {agent.agent_id: agent.problem for agent in again.agents()}
    assert problems["b"] is None
    assert "checksum" in str(problems["a"])
    again.forget("a")
    assert not put(again, "a", 1).failed
    again.close()


def test_a_ledger_that_is_missing_or_rolled_back_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, "a", 1)
    old = ledger_of(store, "a").read_bytes()
    put(store, "a", 2, kv=True)
    put(store, "b", 1, kv=True)
    path = ledger_of(store, "a")
    store.close()

    path.write_bytes(old)
    ledger_of(store, "b").unlink()
    again = Store(tmp_path)

    with pytest.raises(LedgerUnreadable, match="saw"):
        again.read_ledger("a")
    with pytest.raises(LedgerUnreadable, match="missing"):
        again.read_ledger("b")
    assert {agent.agent_id for agent in again.agents()} == {"a", "b"}
    assert all(agent.problem for agent in again.agents())
    again.close()


def test_a_ledger_cut_while_the_store_is_open_is_not_appended_to(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, "a", 1)
    path = ledger_of(store, "a")
    path.write_bytes(path.read_bytes()[:10])

    [(_, part, error)] = put(store, "a", 2).failed

    assert part == "ledger"
    assert isinstance(error, LedgerUnreadable)
    assert len(path.read_bytes()) == 10
    store.close()


def test_an_agent_whose_ledger_is_a_link_to_nowhere_is_there_until_it_is_forgotten(
    tmp_path: Path,
) -> None:
    put(store := Store(tmp_path), "a", 1)
    path = ledger_of(store, "a")
    store.close()
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    store = Store(tmp_path)

    assert store.has("a")
    with pytest.raises(LedgerUnreadable, match="no regular file"):
        store.read_ledger("a")
    store.forget("a")

    assert not store.has("a")
    assert store.read_ledger("a") is None
    store.close()
