"""Messages from any thread: each ends, also where the loop has ended before."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest
from machine import SETTINGS

from kvactors.actors.cluster.agents.messages import error_body, pack_message, send, unpack_message
from kvactors.actors.cluster.machine.known import known_kind
from kvactors.actors.cluster.machine.link import Link
from kvactors.actors.cluster.machine.loop import LoopThread
from kvactors.actors.cluster.machine.seals import Seals, key_name
from kvactors.actors.cluster.protocol.errors import ClusterError, HostFailed, Unanswered
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.core.errors import InvalidConfig, InvalidInput, SystemStopped

WAIT = 60
KEY = b"k" * 32


class Node:
    """All agents live on it; it takes what comes, or refuses all for a `reason`."""

    reason: ClusterError | None = None
    answers: Sequence[Record] = ()

    async def call(
        self, to: str, method: str, record: Record, *, within: float | None = None
    ) -> Record:
        if method == "serve" and self.reason:
            raise self.reason
        if method != "mail":
            return {"node": "one", "epoch": 1, "request": None}
        reason = self.reason and self.reason.to_record()
        taken = [[0, reason] if reason else [len(mail), None] for *_, mail in record["mail"]]
        return {"groups": taken, "refused": []}

    async def stream(self, to: str, method: str, record: Record) -> AsyncIterator[Record]:
        yield await self.call(to, method, record)
        for answer in self.answers:
            yield answer


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def link(node: Node) -> Iterator[Link]:
    link = Link(LoopThread("posting"), node, SETTINGS, 5.0)
    yield link
    link.close()


def test_what_is_sent_after_a_cluster_was_left_ends_at_once(link: Link) -> None:
    told = send(link, "alice", pack_message("hello"), None, asks=False, seconds=None)
    assert told.get(timeout=WAIT) is None
    link.close()

    for seconds in (None, None, 5.0):
        late = send(link, "alice", pack_message("hello"), None, asks=True, seconds=seconds)
        with pytest.raises(SystemStopped, match="leaves its cluster"):
            late.get(timeout=WAIT)


def test_who_has_the_key_reads_why_a_node_could_not_begin_an_agent(node: Node) -> None:
    settings = Settings(key=key_name(KEY))
    node.reason = Seals(KEY).failure("alice", InvalidConfig("no module called trading"))
    link = Link(LoopThread("sealed"), node, settings, 5.0, KEY)
    try:
        told = send(link, "alice", pack_message("hello"), None, asks=False, seconds=None)
        with pytest.raises(InvalidConfig, match="no module called trading"):
            told.get(timeout=WAIT)
        with pytest.raises(InvalidConfig, match="no module called trading"):
            link.run(link.client.serve("alice", link.seconds))
    finally:
        link.close()


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Wordless(), "(its message raised RuntimeError)"),
        (ValueError("\ud800" * 20_000_000), "\ud800" * 65_536 + "…"),
    ],
)
def test_whatever_is_raised_crosses(error: Exception, said: str) -> None:
    assert unpack_message(error_body(error)) == {"error": [type(error).__name__, said]}
    assert HostFailed.of(error).fields["message"] == said


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({(1, 2): 3}, "unhashable"),
        ([{"a": {((),): None}}], "unhashable"),
        ({"a": 1 + 2j}, "this one has a builtins.complex"),
    ],
)
def test_a_message_that_nobody_could_read_is_not_sent(message: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        pack_message(message)
    assert str(refused.value).count("between agents of a cluster") == 1


def test_a_request_that_was_answered_is_kept_by_no_timer(node: Node, link: Link) -> None:
    node.answers = [{"answers": [[0, pack_message({"value": 7})]], "lost": []}]
    told = send(link, "alice", pack_message("?"), None, asks=True, seconds=3600.0)
    assert told.get(timeout=WAIT) == 7
    kept = weakref.ref(told)
    del told
    for _ in range(3):
        link.run(asyncio.sleep(0))
    gc.collect()

    assert kept() is None


def test_an_error_of_the_cluster_that_a_behaviour_raised_has_fields() -> None:
    found = known_kind("Unanswered", "no answer in 5 s")

    assert isinstance(found, Unanswered)
    assert (str(found), found.fields) == ("no answer in 5 s", {})
