"""What crosses is plain, has a version, and errors are the same on the other side."""

import asyncio
from collections.abc import AsyncIterator

import msgpack  # type: ignore[import-untyped]
import pytest

from kvactors.actors.cluster.protocol.errors import (
    ClusterError,
    HostFailed,
    StaleEpoch,
    WrongRecord,
)
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.records import Member, Place
from kvactors.actors.cluster.protocol.wire import (
    VERSION,
    answered,
    pack,
    serve,
    serve_stream,
    unpack,
)

PLACE = Place("alice", "n0", 1, 5, "n1", "market", 1, {"system_prompt": "..."})


def test_a_record_is_the_same_behind_the_wire() -> None:
    assert Place.from_record(unpack(pack(PLACE.to_record()))) == PLACE


def test_a_prompt_may_have_half_a_character() -> None:
    assert unpack(pack({"text": "\ud83d"})) == {"text": "\ud83d"}


def test_a_node_of_an_older_journal_was_not_leaving() -> None:
    record = Member("n0", 1, "d", draining=True).to_record()
    del record["leaving"]

    assert Member.from_record(record) == Member("n0", 1, "d", draining=True)


@pytest.mark.parametrize("change", [{"more": 1}, {"node": None}])
def test_a_record_with_other_fields_is_refused(change: Record) -> None:
    record = {**Member("n0", 1, "d").to_record(), **change}
    if record["node"] is None:
        del record["node"]

    with pytest.raises(WrongRecord, match=r"unknown or missing fields"):
        Member.from_record(record)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb(7),
        msgpack.packb({"record": {}}),
        msgpack.packb({"version": VERSION, "record": 7}),
        msgpack.packb({"version": VERSION, "record": "of text"}),
        msgpack.packb({"version": VERSION + 1, "record": {}}),
    ],
)
def test_what_is_no_record_of_this_version_is_refused(data: bytes) -> None:
    with pytest.raises(WrongRecord):
        unpack(data)


async def fails(method: str, record: Record) -> Record:
    if method == "epoch":
        raise StaleEpoch(agent="alice", epoch=3, held=5)
    raise FileNotFoundError("no such file")


def test_an_error_of_the_cluster_is_raised_again_with_its_fields() -> None:
    data = asyncio.run(serve(fails, "epoch", pack({})))

    with pytest.raises(StaleEpoch, match="epoch 3 of 'alice' is over: 5 has begun") as caught:
        answered(data)
    assert caught.value.fields == {"agent": "alice", "epoch": 3, "held": 5}


def test_another_error_comes_with_its_name_and_message() -> None:
    data = asyncio.run(serve(fails, "file", pack({})))

    with pytest.raises(HostFailed, match="FileNotFoundError: no such file"):
        answered(data)


def test_an_error_of_a_newer_version_is_still_one_of_the_cluster() -> None:
    error = ClusterError.from_record({"code": "Unheard", "fields": {"agent": "alice"}})

    assert type(error) is ClusterError


def test_a_stream_ends_with_its_error() -> None:
    async def two_and_an_error(method: str, record: Record) -> AsyncIterator[Record]:
        yield {"tokens": [1]}
        yield {"tokens": [2]}
        raise StaleEpoch(agent="alice", epoch=3, held=5)

    async def collect() -> list[bytes]:
        return [item async for item in serve_stream(two_and_an_error, "turn", pack({}))]

    items = asyncio.run(collect())

    assert [answered(item)["tokens"] for item in items[:2]] == [[1], [2]]
    with pytest.raises(StaleEpoch):
        answered(items[2])
