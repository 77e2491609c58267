"""Turns that are cancelled, taken back and forked on nodes of Ray, and what survives of that."""

import os
import signal
from typing import Any

import pytest
from nodes import Nodes
from waiting import eventually

from kvactors.actors.cluster.agents.handle import ClusterAgent
from kvactors.actors.cluster.protocol.errors import AgentExists
from kvactors.core.schedule.grammar import Grammar
from kvactors.core.schedule.sampling import Sampling

FACT = "My cat is called Biscuit."
QUESTION = "What is my cat called?"
ANSWER = "Your cat is called Biscuit."
# It ends long after whoever reads its beginning.
ENDLESS = Sampling(max_tokens=4000, grammar=Grammar.regex("(ab ){300}"))
WAIT = 60


@pytest.fixture
def told(three: Nodes, request: Any) -> ClusterAgent:
    """An agent on node two that was told a fact, and then another one that it has taken back."""
    # It may have been killed by the test before.
    eventually(lambda: "two" in three.alive())
    agent = three.cluster.spawn(request.node.name, system_prompt="You answer from memory.")
    three.cluster.migrate(agent, "two")
    agent.ask(FACT).get(timeout=WAIT)
    agent.ask("My cat is called Tom.").get(timeout=WAIT)
    assert agent.rewind().get(timeout=WAIT).durable.get(timeout=WAIT)
    return agent


def turns(agent: ClusterAgent) -> list[str]:
    return [turn.text for turn in agent.transcript().turns if turn.role == "user"]


def test_a_fork_and_its_parent_outlive_the_node_that_it_was_made_on(
    three: Nodes, told: ClusterAgent
) -> None:
    child = three.cluster.spawn("child of two", from_=told)
    assert child.ask("My dog is called Rex.").get(timeout=WAIT).durable.get(timeout=WAIT)

    os.kill(three.pid("two"), signal.SIGKILL)

    assert child.ask(QUESTION).get(timeout=WAIT).text == ANSWER
    assert told.ask(QUESTION).get(timeout=WAIT).text == ANSWER
    assert turns(child) == [FACT, "My dog is called Rex.", QUESTION]
    assert turns(told) == [FACT, QUESTION]
    with pytest.raises(AgentExists):
        three.cluster.spawn("child of two", from_=told)


def test_a_stream_that_is_left_ends_on_its_node_and_the_next_turn_goes_on(
    told: ClusterAgent,
) -> None:
    with told.stream("Say it.", sampling=ENDLESS, request_id="left") as stream:
        next(stream)

    reply = stream.reply

    assert reply.finish_reason == "cancelled"
    assert 0 < len(reply.token_ids) < ENDLESS.max_tokens
    again = told.ask("Say it.", request_id="left").get(timeout=WAIT)
    assert (again.text, again.recorded) == (reply.text, True)
    assert turns(told) == [FACT, "Say it."]


def test_cancel_ends_what_another_handle_asked_for(three: Nodes, told: ClusterAgent) -> None:
    other = three.cluster.find(told.agent_id)
    assert other is not None
    stream = told.stream("Say it.", sampling=ENDLESS)
    next(stream)

    other.cancel()

    assert stream.reply.finish_reason == "cancelled"
    assert told.ask(QUESTION).get(timeout=WAIT).text
