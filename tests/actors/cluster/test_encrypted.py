"""A cluster whose nodes have a key: what is said is nowhere to be read, on the way or on disk, and
everything goes on as without one."""

from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
import pytest
from seeded import Bug, bug, seeded
from together import Together

from kvactors import Cluster
from kvactors.actors.cluster.host.host import SystemHost
from kvactors.actors.cluster.machine.clock import MonotonicClock
from kvactors.actors.cluster.machine.sealed_client import open_client
from kvactors.actors.cluster.member.member import check_key
from kvactors.actors.cluster.protocol.client import Client
from kvactors.actors.cluster.protocol.errors import HostFailed
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.core.errors import InvalidConfig, TokenOutOfRange

KEY, OTHER = b"k" * 32, b"o" * 32
PROMPT = "You answer from memory."
FACT = "My cat is called Biscuit."
QUESTION = "What is my cat called?"
ANSWER = "Your cat is called Biscuit."

Open = Callable[..., Together]


@pytest.fixture
def together(tmp_path: Path) -> Iterator[Open]:
    opened: list[Together] = []

    def start(*names: str, key: bytes | None = KEY) -> Together:
        opened.append(Together(tmp_path, *names, key=key))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def a_life(nodes: Together) -> list[bytes]:
    """An agent is told, asked, streamed, moved and taken over; what of that is secret, in the forms
    in which it would be found."""
    agent = nodes.cluster.spawn("ada", system_prompt=PROMPT)
    assert agent.ask(FACT).get(timeout=60).durable.get(timeout=60)
    here = nodes.cluster.place("ada").node
    there = next(name for name in nodes.names if name != here)
    assert nodes.cluster.migrate(agent, there).node == there
    with agent.stream(QUESTION) as stream:
        assert "".join(piece.text for piece in stream) == ANSWER
        assert (stream.reply.cache, stream.reply.durable.get(timeout=60)) == ("warm", True)
    nodes.lose(there)
    reply = agent.ask(QUESTION).get(timeout=60)
    assert (reply.text, nodes.cluster.place("ada").node) == (ANSWER, here)
    with pytest.raises(TokenOutOfRange, match="4711471"):
        agent.ask([4711471]).get(timeout=60)
    found = agent.transcript()
    assert [turn.text for turn in found.turns if turn.role == "user"] == [FACT, QUESTION, QUESTION]
    tokens = list(reply.token_ids[:4])
    ids = [msgpack.packb(tokens)[1:], np.asarray(tokens, dtype="<u4").tobytes()]
    return [b"Biscuit", b"from memory", b"4711471", *ids]


def found(nodes: Together, secrets: list[bytes]) -> tuple[set[bytes], set[bytes]]:
    """Which of `secrets` stand in a message, and which in a file."""
    files = [path.read_bytes() for path in nodes.folder.rglob("*") if path.is_file()]
    assert len(files) > 6
    assert len(nodes.transport.seen) > 50

    def among(data: list[bytes]) -> set[bytes]:
        return {secret for secret in secrets if any(secret in part for part in data)}

    return among(nodes.transport.seen), among(files)


def test_what_is_said_stands_nowhere_in_plain_text(together: Open) -> None:
    nodes = together("one", "two")

    secrets = a_life(nodes)

    assert found(nodes, secrets) == (set(), set())


def test_without_a_key_it_does(together: Open) -> None:
    nodes = together("one", "two", key=None)

    secrets = a_life(nodes)

    text, words, number, packed, stored = secrets
    on_the_way, on_disk = found(nodes, secrets)
    assert on_the_way >= {text, words, number, packed}
    assert on_disk >= {text, words, stored}


def test_without_the_key_agents_are_seen_and_not_heard(together: Open) -> None:
    nodes = together("one", "two")
    nodes.cluster.spawn("ada", system_prompt=PROMPT)
    before = len(nodes.transport.seen)
    with nodes.connect(None) as stranger:
        with pytest.raises(InvalidConfig, match="needs their key"):
            stranger.spawn("bob", system_prompt=PROMPT)
        agent = stranger.find("ada")
        assert agent is not None
        for refused in (lambda: agent.ask(FACT).get(timeout=60), agent.transcript):
            with pytest.raises(InvalidConfig, match="needs their key"):
                refused()
        with pytest.raises(InvalidConfig, match="needs their key"):
            next(agent.stream(FACT))
        assert set(stranger.places()) == {"ada"}
    assert not any(b"Biscuit" in data for data in nodes.transport.seen[before:])


def test_another_key_is_refused(together: Open) -> None:
    nodes = together("one")

    with pytest.raises(InvalidConfig, match="another encryption_key"):
        nodes.connect(OTHER)
    for key in (OTHER, None):
        with pytest.raises(InvalidConfig, match="have the same key"):
            check_key(key, nodes.settings)
    with pytest.raises(InvalidConfig, match="have the same key"):
        check_key(KEY, Settings())


def cannot_begin(who: str) -> Bug:
    @bug(SystemHost, "begin")
    def refused(true: Any) -> Any:
        async def begin(host: SystemHost, agent: str, options: Any) -> None:
            if agent == who:
                raise InvalidConfig("what it does is not to be found here")
            await true(host, agent, options)

        return begin

    return refused


@pytest.mark.parametrize(
    ("who", "asks"),
    [
        ("ada", lambda client: client.cancel("ada", "r", 60)),
        ("ada", lambda client: client.fork("ada", "bob", "r", 60)),
        ("bob", lambda client: client.fork("ada", "bob", "r", 60)),
    ],
)
def test_why_an_agent_cannot_begin_is_told_to_who_has_the_key(
    together: Open, who: str, asks: Callable[[Client], Coroutine[Any, Any, object]]
) -> None:
    nodes = together("one")
    nodes.cluster.spawn("ada", system_prompt=PROMPT)
    client = open_client(nodes.transport, MonotonicClock(), nodes.settings, KEY)

    with seeded(cannot_begin(who)), pytest.raises(HostFailed, match="is not to be found here"):
        nodes.loop.run(asks(client))


def test_a_cluster_of_one_process_may_have_a_key_too(tmp_path: Path) -> None:
    with Cluster.local(store=tmp_path, encryption_key=KEY) as cluster:
        agent = cluster.spawn("ada", system_prompt=PROMPT)
        agent.ask(FACT).get(timeout=60)
    with Cluster.local(store=tmp_path, encryption_key=KEY) as cluster:
        assert cluster.spawn("ada").ask(QUESTION).get(timeout=60).text == ANSWER
        assert cluster.spawn("ada", system_prompt=PROMPT).agent_id == "ada"

    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"memory" in data or b"Biscuit" in data for data in files)


@pytest.mark.slow
@pytest.mark.parametrize("key", [KEY, None], ids=["encrypted", "plain"])
def test_forks_rewinds_and_turns_that_end_early_outlive_their_node(
    together: Open, key: bytes | None
) -> None:
    nodes = together("one", "two", key=key)
    agent = nodes.cluster.spawn("ada", system_prompt=PROMPT)
    early = nodes.cluster.spawn("eve", from_=agent)
    for said in (FACT, "My cat is called Tom."):
        agent.ask(said).get(timeout=60)
    assert agent.rewind().get(timeout=60).durable.get(timeout=60)
    child = nodes.cluster.spawn("bob", from_=agent)
    with agent.stream("Say it.", request_id="left") as stream:
        next(stream)
    assert stream.reply.durable.get(timeout=60)
    remembered = [turn.text for turn in agent.transcript().turns]

    nodes.lose(nodes.cluster.place("ada").node)

    assert child.ask(QUESTION).get(timeout=60).text == ANSWER
    assert [turn.text for turn in child.transcript().turns[:2]] == remembered[:2]
    assert agent.ask("Say it.", request_id="left").get(timeout=60).text == stream.reply.text
    assert [turn.text for turn in agent.transcript().turns] == remembered
    assert early.ask(FACT).get(timeout=60).text
    assert found(nodes, [b"Biscuit", b"from memory"])[0] == (
        set() if key else {b"Biscuit", b"from memory"}
    )
