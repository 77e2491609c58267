"""The control of what is lost and taken over in `test_messages_between.py`, `test_encrypted.py` and
`ray/`: with replication off the same turns are gone."""

from collections.abc import Callable

import pytest
from losing import the_replica_gets_nothing
from seeded import seeded
from together import Together
from waiting import eventually

from kvactors import Cluster
from kvactors.actors.cluster.agents.handle import ClusterAgent
from kvactors.actors.cluster.protocol.errors import ForkLost

OpenNodes = Callable[..., Together]
WAIT = 60


def turns(cluster: Cluster, agent: str) -> list[str]:
    found = cluster.find(agent)
    assert found is not None
    try:
        return [turn.text for turn in found.transcript().turns if turn.role == "user"]
    except ForkLost:
        return []


def talked(cluster: Cluster) -> list[ClusterAgent]:
    """An agent that was asked, a fork of it, and one that behaves: all of it is called durable."""
    ada = cluster.spawn("ada", group="together")
    bob = None
    for number in range(2):
        assert ada.ask(f"Number {number}.").get(timeout=WAIT).durable.get(timeout=WAIT)
        bob = bob or cluster.spawn("bob", from_=ada)
    assert bob is not None
    assert bob.ask("Number 2.").get(timeout=WAIT).durable.get(timeout=WAIT)
    scribe = cluster.spawn("scribe", group="together", behaviour="talking:Scribe")
    # Where somebody has put them all, none is moved to level the nodes.
    for agent in (ada, bob, scribe):
        cluster.migrate(agent, "one")
    assert scribe.request(0, timeout=WAIT).get(timeout=WAIT) == 0
    return [ada, bob, scribe]


@pytest.mark.slow
@pytest.mark.parametrize("replicated", [True, False])
def test_a_lost_node_takes_what_was_durable_along_if_replication_is_off(
    open_nodes: OpenNodes, *, replicated: bool
) -> None:
    nodes = open_nodes("one", "two")
    cluster = nodes.cluster
    if replicated:
        agents = talked(cluster)
    else:
        with seeded(the_replica_gets_nothing):
            agents = talked(cluster)
    (here,) = {cluster.place(agent.agent_id).node for agent in agents}

    nodes.lose(here)
    eventually(lambda: all(cluster.place(agent.agent_id).node != here for agent in agents))

    kept = {agent.agent_id: turns(cluster, agent.agent_id) for agent in agents}
    said = {
        "ada": ["Number 0.", "Number 1."],
        "bob": ["Number 0.", "Number 2."],
        "scribe": ["Number 0."],
    }
    assert kept == (said if replicated else {agent: [] for agent in said})
