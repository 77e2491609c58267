"""A disk that is full, and a head of which nothing is left: two nodes, one on a small disk."""

import subprocess
from collections.abc import Iterator

import pytest
from nodes import Nodes

from kvactors.actors.cluster.agents.handle import ClusterAgent
from kvactors.core.errors import KvactorsError

FACTS = ["My cat is called Biscuit.", "The candle costs 90 dollars."]
QUESTION = "What is my cat called?"
ANSWER = "Your cat is called Biscuit."
QUESTIONS = [f"What is number {number}?" for number in range(200)]
SMALL = "two"


@pytest.fixture(scope="module")
def harsh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A head, and a node whose disk is small."""
    folder = tmp_path_factory.mktemp("harsh")
    disk = folder / SMALL
    disk.mkdir()
    mounts = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(disk)]
    if subprocess.run(mounts, capture_output=True, check=False).returncode:
        pytest.skip("a small disk takes the right to mount one")
    try:
        nodes = Nodes(folder, "one", SMALL)
        yield nodes
        nodes.end()
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


class Full:
    """The small disk, without room while it lasts."""

    def __init__(self, nodes: Nodes) -> None:
        self._file = nodes.folder / SMALL / "filler"

    def __enter__(self) -> None:
        with self._file.open("wb", buffering=0) as file:
            for size in (2**20, 2**12, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue

    def __exit__(self, *_: object) -> None:
        self._file.unlink()


def told(nodes: Nodes, name: str, node: str) -> ClusterAgent:
    agent = nodes.cluster.spawn(name, system_prompt="You answer from memory.")
    nodes.cluster.migrate(agent, node)
    for fact in FACTS:
        assert agent.ask(fact).get(timeout=60).durable.get(timeout=60)
    return agent


def turns(agent: ClusterAgent) -> list[str]:
    return [turn.text for turn in agent.transcript().turns if turn.role == "user"]


def test_a_turn_on_a_full_disk_fails_and_is_taken_once_there_is_room(harsh: Nodes) -> None:
    agent = told(harsh, "owned", SMALL)
    given: list[str] = []

    def until_refused() -> None:
        # The last page of a file has room for some.
        for question in QUESTIONS:
            assert agent.ask(question, request_id=question).get(timeout=60).durable.get(timeout=60)
            given.append(question)

    with Full(harsh), pytest.raises(KvactorsError, match=r"[Nn]o space left"):
        until_refused()

    refused = QUESTIONS[len(given)]
    assert agent.ask(refused, request_id=refused).get(timeout=60).text
    assert agent.ask(QUESTION).get(timeout=60).text == ANSWER
    assert turns(agent) == [*FACTS, *given, refused, QUESTION]


def test_a_turn_whose_copy_finds_no_room_is_durable_when_there_is(harsh: Nodes) -> None:
    agent = told(harsh, "copied", "one")
    given: list[str] = []

    with Full(harsh):
        for question in QUESTIONS:
            reply = agent.ask(question).get(timeout=60)
            given.append(question)
            if not reply.durable.done:
                break
        assert not reply.durable.done
        assert agent.ask(QUESTION).get(timeout=60).text == ANSWER

    assert reply.durable.get(timeout=60)
    assert harsh.cluster.place("copied").replica == SMALL
    assert turns(agent) == [*FACTS, *given, QUESTION]


def test_a_head_of_which_nothing_is_left_is_started_again_and_forgets_nothing(harsh: Nodes) -> None:
    for name, node in (("at the head", "one"), ("elsewhere", SMALL)):
        told(harsh, name, node)
    before = harsh.cluster.places()

    harsh.kill_head()
    harsh.begin_again()

    after = harsh.cluster.places()
    assert after.keys() == before.keys()
    for name in ("at the head", "elsewhere"):
        agent = harsh.cluster.find(name)
        assert agent is not None
        assert agent.ask(QUESTION).get(timeout=60).text == ANSWER
        assert turns(agent) == [*FACTS, QUESTION]
