"""The control: where turns are durable on one node alone, they are lost with it."""

import pytest
from nodes import Nodes

from kvactors.actors.cluster.cluster import Cluster
from kvactors.actors.cluster.protocol.errors import Unanswered
from kvactors.core.errors import InvalidConfig

# Its nodes take longer to begin than both tests: they are begun by turns.
pytestmark = pytest.mark.slow

FACT = "My cat is called Biscuit."
QUESTION = "What is my cat called?"


def test_a_node_that_is_lost_takes_its_agents_along(carefree: Nodes) -> None:
    cluster = carefree.cluster
    agent = cluster.spawn("alone", system_prompt="You answer from memory.")
    scribe = cluster.spawn("scribe", behaviour="talking:Scribe")
    for node in ("one", "two"):
        cluster.migrate(agent, node)
        cluster.migrate(scribe, node)
    assert agent.ask(FACT).get(timeout=60).durable.get(timeout=60)
    child = cluster.spawn("child", from_=agent)
    cluster.migrate(child, "two")
    assert scribe.request(0, timeout=60).get(timeout=60) == 0

    carefree.lose("two")

    # Those of which `three` keeps all: in test_three_nodes.py, test_reach.py and test_talking.py.
    asked = [one.ask(QUESTION, timeout=10) for one in (agent, child, scribe)]
    for one in asked:
        with pytest.raises(Unanswered, match="stored on two, which are away"):
            one.get(timeout=60)


def test_a_client_that_counts_on_two_copies_is_told_that_there_is_one(carefree: Nodes) -> None:
    with pytest.raises(InvalidConfig, match="--durable one, not 'two'"):
        Cluster.connect(carefree.address, durable="two")
