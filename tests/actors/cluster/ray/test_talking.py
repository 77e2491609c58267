"""Agents of three nodes that tell each other things, and lose one of the nodes meanwhile."""

import os
import signal
from typing import Any

from nodes import Nodes
from waiting import eventually

from kvactors.actors.cluster.agents.handle import ClusterAgent
from kvactors.actors.cluster.protocol.errors import Unanswered
from kvactors.core.errors import Undelivered

WAIT = 60


def behaves(nodes: Nodes, agent: str, kind: str, node: str) -> ClusterAgent:
    """An agent that behaves, on a node of this name."""
    made = nodes.cluster.spawn(agent, group=agent, behaviour=f"talking:{kind}")
    assert nodes.cluster.migrate(made, node).node == node
    return made


def asked(agent: ClusterAgent, message: Any) -> Any:
    return agent.request(message, timeout=WAIT).get(timeout=WAIT)


def numbers(agent: ClusterAgent) -> list[int]:
    """What a Scribe has thought of, in order."""
    told = [turn.text for turn in agent.transcript().turns if turn.role == "user"]
    return [int(text.removeprefix("Number ").removesuffix(".")) for text in told]


def test_agents_of_different_nodes_tell_and_ask_each_other(three: Nodes) -> None:
    talker = behaves(three, "talker", "Talker", "one")
    diary = behaves(three, "diary", "Diary", "two")

    assert asked(talker, ["pour", "diary", 0, 2000]) == 2000
    assert asked(talker, ["question", "diary", "last"]) == 2001
    assert asked(diary, "what?") == [[said, "talker"] for said in [*range(2000), "last"]]

    assert three.cluster.migrate(diary, "three").node == "three"
    assert asked(talker, ["question", "diary", "there"]) == 1
    kind, words = asked(talker, ["question", "nobody", "there"])
    assert (kind, "nobody" in words) == ("UnknownAgent", True)


def test_a_killed_node_takes_no_durable_turn_of_a_behaviour_and_none_is_taken_twice(
    three: Nodes,
) -> None:
    scribe = behaves(three, "scribe", "Scribe", "two")
    answered, unsure = list[int](), list[int]()

    def tell(number: int) -> None:
        try:
            assert asked(scribe, number) == number
            answered.append(number)
        except (Undelivered, Unanswered):
            unsure.append(number)

    for number in range(5):
        tell(number)
    waiting = [scribe.request(number, timeout=WAIT) for number in range(5, 10)]
    os.kill(three.pid("two"), signal.SIGKILL)
    for number, future in enumerate(waiting, 5):
        try:
            answered.append(future.get(timeout=WAIT))
        except (Undelivered, Unanswered):
            unsure.append(number)
    for number in range(10, 15):
        tell(number)

    assert [*range(5), *range(11, 15)] == [n for n in answered if n < 5 or n > 10]
    found = numbers(scribe)
    assert found == sorted(set(found))
    assert set(answered) <= set(found) <= {*answered, *unsure}
    eventually(lambda: "two" in three.alive())
