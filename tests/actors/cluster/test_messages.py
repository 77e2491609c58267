"""Behaviours in a cluster, and the messages between their agents: of one process."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from talking import Diary, Echo, Picky

from kvactors import Cluster, Supervision
from kvactors.actors.cluster.protocol.errors import AgentExists, UnknownAgent
from kvactors.core.errors import BehaviourFailed, InvalidConfig, InvalidInput, Undelivered

WAIT = 60

Open = Callable[[], Cluster]


@pytest.fixture
def open_cluster(tmp_path: Path) -> Iterator[Open]:
    """Clusters over one store, one after the other."""
    opened: list[Cluster] = []

    def start() -> Cluster:
        opened.append(Cluster.local(store=tmp_path / "store"))
        return opened[-1]

    yield start
    for cluster in opened:
        cluster.close()


def asked(cluster: Cluster, agent: str, message: Any) -> Any:
    found = cluster.find(agent)
    assert found is not None
    return found.request(message, timeout=WAIT).get(timeout=WAIT)


def test_a_behaviour_thinks_answers_and_remembers_over_restarts(open_cluster: Open) -> None:
    with open_cluster() as cluster:
        echo = cluster.spawn("echo", system_prompt="You answer.", behaviour=Echo)
        said = echo.request("Biscuit").get(timeout=WAIT)
        turns = [turn.text for turn in echo.transcript().turns]
        assert turns == ["My cat is called Biscuit.", said]
    with open_cluster() as cluster:
        echo = cluster.spawn("echo")
        echo.request("Tom").get(timeout=WAIT)
        found = [turn.text for turn in echo.transcript().turns if turn.role == "user"]
        assert found == ["My cat is called Biscuit.", "My cat is called Tom."]


def test_agents_tell_and_ask_each_other_in_order(open_cluster: Open) -> None:
    cluster = open_cluster()
    cluster.spawn("talker", behaviour="talking:Talker")
    cluster.spawn("diary", behaviour="talking:Diary")

    assert asked(cluster, "talker", ["pour", "diary", 0, 500]) == 500
    assert asked(cluster, "talker", ["question", "diary", {"a": [1, None, b"x", 0.5]}]) == 501

    told = asked(cluster, "diary", "what?")
    assert told == [[n, "talker"] for n in [*range(500), {"a": [1, None, b"x", 0.5]}]]
