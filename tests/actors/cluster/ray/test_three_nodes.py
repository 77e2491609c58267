"""Three nodes on one host: what is asked, what is moved, and what survives."""

import asyncio
import os
import signal
from typing import Any

import pytest
from nodes import Nodes
from waiting import eventually

from kvactors.actors.cluster.agents.handle import ClusterAgent
from kvactors.actors.cluster.cluster import Cluster
from kvactors.actors.cluster.protocol.client import PASSING
from kvactors.actors.cluster.protocol.errors import AgentExists, UnknownAgent, UnknownNode
from kvactors.actors.cluster.ray.transport import RayTransport
from kvactors.actors.turns.reply import Reply
from kvactors.core.errors import InvalidConfig, InvalidInput, TokenOutOfRange
from kvactors.core.schedule.sampling import Sampling

FACTS = ["My cat is called Biscuit.", "The candle costs 90 dollars."]
QUESTION = "What is my cat called?"
SCORED = Sampling(max_tokens=12, top_logprobs=3)


def told(nodes: Nodes, name: str, node: str) -> ClusterAgent:
    """An agent on `node` that was told the facts, whose every turn is durable."""
    agent = nodes.cluster.spawn(name, system_prompt="You answer from memory.")
    nodes.cluster.migrate(agent, node)
    for fact in FACTS:
        assert agent.ask(fact).get(timeout=60).durable.get(timeout=60)
    # Nodes that came back are brought their share meanwhile.
    assert nodes.cluster.migrate(agent, node).node == node
    return agent


def turns(agent: ClusterAgent) -> list[str]:
    """What it was told and asked, in order."""
    return [turn.text for turn in agent.transcript().turns if turn.role == "user"]


def said(reply: Reply) -> Any:
    """All of it that must be the same, to the last bit."""
    return reply.token_ids, reply.text, reply.logprobs, reply.usage.prompt_tokens


def call(to: str, method: str, record: dict[str, Any], seconds: float = 5) -> dict[str, Any]:
    """What a node answers, asked past its directory."""
    return asyncio.run(RayTransport().call(to, method, record, within=seconds))


def test_an_agent_answers_from_wherever_it_lives(three: Nodes) -> None:
    agent = told(three, "ada", "two")

    assert agent.ask(QUESTION).get(timeout=60).text == "Your cat is called Biscuit."
    with agent.stream(QUESTION) as stream:
        assert "".join(piece.text for piece in stream) == stream.reply.text
    assert agent.observe("I like tea.").get(timeout=60).durable.get(timeout=60)
    agent.tell(FACTS[0])
    assert asyncio.run(agent.ask_async(QUESTION)).text == "Your cat is called Biscuit."
    assert turns(agent) == [*FACTS, QUESTION, QUESTION, "I like tea.", FACTS[0], QUESTION]


def test_what_is_asked_of_one_handle_is_taken_in_order(three: Nodes) -> None:
    agent = three.cluster.spawn("many", system_prompt="You answer from memory.")

    asked = [f"My cat number {number} is called Biscuit." for number in range(10)]
    for reply in [agent.ask(prompt) for prompt in asked]:
        reply.get(timeout=60)

    assert turns(agent) == asked


def test_errors_are_those_of_one_machine(three: Nodes) -> None:
    agent = three.cluster.spawn("odd", system_prompt="You answer from memory.")

    with pytest.raises(TokenOutOfRange, match="outside the vocabulary"):
        agent.ask([10**6]).get(timeout=60)
    with pytest.raises(InvalidInput, match="the prompt is empty"):
        agent.ask("")
    with pytest.raises(AgentExists, match="other options"):
        three.cluster.spawn("odd", system_prompt="Another one.")
    with pytest.raises(UnknownNode, match="nowhere"):
        three.cluster.migrate(agent, "nowhere")
    with pytest.raises(UnknownAgent, match="nobody"):
        three.cluster.migrate("nobody")
    assert three.cluster.find("nobody") is None


def test_a_moved_agent_says_what_an_unmoved_one_says_bit_for_bit(three: Nodes) -> None:
    moved, unmoved = told(three, "moved", "one"), told(three, "unmoved", "one")

    for node in ("two", "three", "one"):
        assert three.cluster.migrate(moved, node).node == node
        found = moved.ask(QUESTION, sampling=SCORED).get(timeout=60)
        expected = unmoved.ask(QUESTION, sampling=SCORED).get(timeout=60)
        assert found.cache == "warm"
        assert said(found) == said(expected)


def _kv_followed(nodes: Nodes, agent_id: str) -> bool:
    place = nodes.cluster.place(agent_id)
    assert place.replica is not None
    there = call(place.replica, "digests", {"agent": agent_id})["have"]
    return bool(there) and there == call(place.node, "digests", {"agent": agent_id})["have"]


def test_a_killed_process_takes_no_durable_turn_with_it(three: Nodes) -> None:
    agent = told(three, "killed", "two")

    os.kill(three.pid("two"), signal.SIGKILL)

    assert agent.ask(QUESTION).get(timeout=60).text == "Your cat is called Biscuit."
    assert turns(agent) == [*FACTS, QUESTION]
    eventually(lambda: "two" in three.alive())


def test_a_node_that_stood_still_past_its_lease_is_refused(three: Nodes) -> None:
    agent = told(three, "frozen", "two")
    stopped = three.pid("two")
    os.kill(stopped, signal.SIGSTOP)
    try:
        with agent.stream(QUESTION) as stream:
            reply = stream.reply
    finally:
        os.kill(stopped, signal.SIGCONT)

    assert reply.text == "Your cat is called Biscuit."
    assert three.cluster.place("frozen").node != "two"
    request = {"kind": "ask", "id": "late", "prompt": "My cat is called Tom."}
    with pytest.raises(PASSING):
        call("two", "turn", {"agent": "frozen", "request": request})
    assert turns(agent) == [*FACTS, QUESTION]
    eventually(lambda: "two" in three.alive())


@pytest.mark.slow
def test_a_node_whose_ray_died_ends_and_comes_back_over_its_store(three: Nodes) -> None:
    agent = told(three, "uprooted", "three")
    process = three.running.pop("three")

    os.kill(three.raylet_pid("three"), signal.SIGKILL)

    assert process.wait(60) == 2
    # In Ray's words: where it wrote them is gone with it.
    said = (three.folder / "three.log").read_text().partition("on this machine have ended: ")[2]
    assert "raylet" in said
    assert agent.ask(QUESTION).get(timeout=60).text == "Your cat is called Biscuit."
    assert turns(agent) == [*FACTS, QUESTION]
    three.join("three")
    eventually(lambda: "three" in three.alive())


def test_a_directory_that_died_forgets_nothing(three: Nodes) -> None:
    agent = told(three, "known", "two")
    before = three.cluster.places()

    os.kill(three.pid("directory"), signal.SIGKILL)

    assert agent.ask(QUESTION).get(timeout=60).text == "Your cat is called Biscuit."
    after = three.cluster.places()
    assert after.keys() == before.keys()
    for name, place in before.items():
        # It may have moved since: never back to an epoch that was over.
        assert after[name].epoch >= place.epoch
        assert (after[name].born, after[name].options) == (place.born, place.options)


def test_a_drained_node_has_no_agents_and_gets_none(three: Nodes) -> None:
    agent = told(three, "drained", "two")

    three.cluster.drain("two")

    assert three.cluster.stats()["nodes"]["two"]["agents"] == 0
    assert agent.ask(QUESTION).get(timeout=60).text == "Your cat is called Biscuit."
    for number in range(4):
        three.cluster.spawn(f"after-{number}", group=f"group {number}")
        assert three.cluster.place(f"after-{number}").node != "two"
    three.cluster.drain("two", undo=True)
    assert three.cluster.migrate(agent, "two").node == "two"


def test_a_node_that_is_told_to_end_gives_its_agents_away_first(three: Nodes) -> None:
    agent = told(three, "handed over", "three")
    process = three.running.pop("three")

    process.send_signal(signal.SIGTERM)
    eventually(lambda: three.cluster.place("handed over").node != "three")
    status = process.wait(60)

    assert status == 0
    reply = agent.ask(QUESTION).get(timeout=60)
    assert (reply.text, reply.cache) == ("Your cat is called Biscuit.", "warm")
    assert three.cluster.stats()["nodes"]["three"]["agents"] == 0
    three.join("three")
    eventually(lambda: "three" in three.alive())
    assert not three.cluster.stats()["nodes"]["three"]["draining"]


def test_the_commands_show_and_move(three: Nodes) -> None:
    told(three, "shown", "one")

    moved = three.command("cluster", "move", "shown", "--to", "three", "--address", three.address)
    assert "shown lives on three" in moved.stderr
    assert three.read("cluster", "status")["nodes"].keys() == {"one", "two", "three"}


def test_a_wrong_token_is_named_at_once(three: Nodes, token: str) -> None:
    joins = ["node", "--join", three.address, "--store", str(three.folder / "four")]

    os.environ["RAY_AUTH_TOKEN"] = "another"
    try:
        done = three.command(*joins)
    finally:
        os.environ["RAY_AUTH_TOKEN"] = token

    assert done.returncode == 2
    assert "refuses the token of this process (from RAY_AUTH_TOKEN)" in done.stderr
    assert not (three.folder / "four").exists()


def test_another_cluster_than_this_process_has_is_refused(three: Nodes) -> None:
    with pytest.raises(InvalidInput, match="one cluster a process"):
        Cluster.connect("127.0.0.1:1")
    with pytest.raises(InvalidConfig, match="--durable two"):
        Cluster.connect(three.address, durable="one")


def test_a_node_that_is_lost_takes_no_durable_turn_with_it(three: Nodes) -> None:
    agents = [told(three, f"bereft-{number}", "three") for number in range(3)]
    followed = [agent.agent_id for agent in agents]
    eventually(lambda: all(_kv_followed(three, agent_id) for agent_id in followed))

    kept = told(three, "copied", "three")
    three.cluster.migrate(kept, three.cluster.place("copied").replica or "one")
    eventually(lambda: three.cluster.place("copied").replica == "three")

    three.lose("three")

    for agent in agents:
        reply = agent.ask(QUESTION).get(timeout=60)
        assert reply.text == "Your cat is called Biscuit."
        assert reply.cache == "warm"
        assert turns(agent) == [*FACTS, QUESTION]
        assert three.cluster.place(agent.agent_id).node != "three"
    # One of which it had the copy has another.
    eventually(lambda: three.cluster.place("copied").replica in ("one", "two"))
    assert kept.ask(QUESTION).get(timeout=60).durable.get(timeout=60)
    # Another disk has nothing of what was kept there, and is not taken for it.
    three.join("three")
    assert three.running.pop("three").wait(60) == 2
    assert "has joined with another disk" in (three.folder / "three.log").read_text()
    three.join("four")
    eventually(lambda: "four" in three.alive())
