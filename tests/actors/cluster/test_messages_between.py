"""Behaviours of agents that live on different nodes, that move, and whose nodes are lost."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from seeded import bug, seeded
from talking import Gate
from together import Together

from kvactors.actors.cluster.agents.handle import ClusterAgent
from kvactors.actors.cluster.member import behaviours
from kvactors.actors.cluster.protocol.errors import Unanswered

WAIT = 60
KEY = b"k" * 32

OpenNodes = Callable[..., Together]


def asked(nodes: Together, agent: str, message: Any) -> Any:
    return ClusterAgent.request(found(nodes, agent), message, timeout=WAIT).get(timeout=WAIT)


def found(nodes: Together, agent: str) -> ClusterAgent:
    there = nodes.cluster.find(agent)
    assert there is not None
    return there


def spawned(nodes: Together, agent: str, kind: str, node: str) -> ClusterAgent:
    """An agent that behaves, on a node of this name."""
    made = nodes.cluster.spawn(agent, group=agent, behaviour=f"talking:{kind}")
    assert nodes.cluster.migrate(made, node).node == node
    return made


def eventually(so: Callable[[], object]) -> None:
    until = time.monotonic() + WAIT
    while not so():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def _gate() -> Iterator[None]:
    """It is shut, until a test opens it."""
    Gate.opened.clear()
    Gate.entered.clear()
    yield
    Gate.opened.set()


@contextmanager
def moving_when_the_gate_opens(nodes: Together, agent: str, node: str) -> Iterator[None]:
    """Meanwhile an agent is to move to a node, and does when the gate is opened: in the end."""
    with ThreadPoolExecutor() as threads:
        moving = threads.submit(nodes.cluster.migrate, agent, node)
        try:
            with pytest.raises(TimeoutError):
                moving.result(timeout=0.5)
            yield
        finally:
            Gate.opened.set()
        assert moving.result(timeout=WAIT).node == node


def test_agents_of_different_nodes_tell_and_ask_each_other(open_nodes: OpenNodes) -> None:
    nodes = open_nodes("one", "two")
    spawned(nodes, "talker", "Talker", "one")
    spawned(nodes, "diary", "Diary", "two")
    spawned(nodes, "other", "Diary", "one")
    spawned(nodes, "echo", "Echo", "two")
    plain = nodes.cluster.spawn("plain", system_prompt="You answer from memory.")
    nodes.cluster.migrate(plain, "two")

    assert asked(nodes, "talker", ["pour", "diary", 0, 300]) == 300
    assert asked(nodes, "talker", ["question", "diary", "last"]) == 301
    asked(nodes, "talker", ["everybody", ["diary", "other"], "all"])
    thought = asked(nodes, "talker", ["question", "echo", "Biscuit"])

    told = asked(nodes, "diary", "what?")
    assert told == [[said, "talker"] for said in [*range(300), "last", "all"]]
    assert asked(nodes, "other", "what?") == [["all", "talker"]]
    eventually(lambda: asked(nodes, "talker", ["heard"]) == ["Biscuit", "echo"])
    echo = found(nodes, "echo").transcript()
    assert [turn.text for turn in echo.turns] == ["My cat is called Biscuit.", thought]
    answer, durable = asked(nodes, "talker", ["turned", "plain", "Hello."])
    assert (bool(answer), durable) == (True, True)


def test_messages_that_wait_together_go_in_one_call(open_nodes: OpenNodes) -> None:
    nodes = open_nodes("one", "two")
    spawned(nodes, "talker", "Talker", "one")
    spawned(nodes, "diary", "Diary", "two")
    nodes.transport.seen.clear()

    asked(nodes, "talker", ["pour", "diary", 0, 900])

    assert sum(b"\xa4mail" in record for record in nodes.transport.seen) < 20


def test_mail_finds_an_agent_that_moves_once_and_in_order(open_nodes: OpenNodes) -> None:
    nodes = open_nodes("one", "two")
    spawned(nodes, "talker", "Talker", "one")
    spawned(nodes, "diary", "Echo", "two")
    talker = found(nodes, "talker")

    pouring = [talker.request(["tell", "diary", number], timeout=WAIT) for number in range(8)]
    for node in ("one", "two", "one"):
        assert nodes.cluster.migrate("diary", node).node == node
    for one in pouring:
        assert one.get(timeout=WAIT) == 1

    def questions() -> list[str]:
        turns = found(nodes, "diary").transcript().turns
        return [turn.text for turn in turns if turn.role == "user"]

    eventually(lambda: len(questions()) >= 8)
    assert questions() == [f"My cat is called {number}." for number in range(8)]


@pytest.mark.usefixtures("_gate")
def test_an_agent_that_handles_a_message_moves_when_it_is_done(open_nodes: OpenNodes) -> None:
    nodes = open_nodes("one", "two")
    gate = spawned(nodes, "gate", "Gate", "one")
    handled = gate.request("Biscuit", timeout=WAIT)
    assert Gate.entered.wait(WAIT)
    with moving_when_the_gate_opens(nodes, "gate", "two"):
        assert nodes.cluster.place("gate").node == "one"
        later = gate.request("Tom", timeout=WAIT)
    for answer in (handled, later):
        assert answer.get(timeout=WAIT) in ("stop", "length")
    turns = [turn.text for turn in gate.transcript().turns if turn.role == "user"]
    assert turns == ["My cat is called Biscuit.", "My cat is called Tom."]


@bug(behaviours, "value_body")
def an_answer_is_packed_until_the_gate_opens(true: Any) -> Any:
    def packed(value: Any) -> Any:
        Gate.entered.set()
        Gate.opened.wait(WAIT)
        return true(value)

    return packed


@pytest.mark.usefixtures("_gate")
def test_an_agent_whose_answer_is_being_packed_moves_when_that_is_given(
    open_nodes: OpenNodes,
) -> None:
    nodes = open_nodes("one", "two")
    diary = spawned(nodes, "diary", "Diary", "one")
    with seeded(an_answer_is_packed_until_the_gate_opens):
        told = diary.request("hello", timeout=WAIT)
        assert Gate.entered.wait(WAIT)
        with moving_when_the_gate_opens(nodes, "diary", "two"):
            pass
        assert told.get(timeout=WAIT) == 1


@pytest.mark.usefixtures("_gate")
@pytest.mark.parametrize("sends", ["fling", "wonder"])
def test_what_an_agent_has_sent_is_not_overtaken_by_what_it_sends_elsewhere(
    open_nodes: OpenNodes, sends: str
) -> None:
    nodes = open_nodes("one", "two")
    spawned(nodes, "talker", "Talker", "one")
    spawned(nodes, "late", "Late", "two")
    # More than a mailbox holds: the rest waits on its node.
    assert asked(nodes, "talker", [sends, "late", 0, 1100]) == 1100
    with moving_when_the_gate_opens(nodes, "talker", "two"):
        pass

    assert asked(nodes, "talker", ["pour", "late", 1100, 5]) == 5
    assert asked(nodes, "late", "all") == [*range(1105), "all"]


def test_an_agent_moves_behind_what_it_was_to_remember_and_nobody_awaits(
    open_nodes: OpenNodes,
) -> None:
    nodes = open_nodes("one", "two")
    talker = spawned(nodes, "talker", "Talker", "one")

    assert asked(nodes, "talker", ["note", 40]) == 40
    nodes.cluster.migrate("talker", "two")

    turns = [turn.text for turn in talker.transcript().turns]
    assert turns == [f"Fact {number}." for number in range(40)]


@pytest.mark.slow
def test_a_lost_node_takes_no_durable_turn_of_a_behaviour_with_it(open_nodes: OpenNodes) -> None:
    nodes = open_nodes("one", "two", "three")
    echo = spawned(nodes, "echo", "Echo", "two")
    spawned(nodes, "talker", "Talker", "one")
    for name in ("Biscuit", "Tom"):
        asked(nodes, "talker", ["question", "echo", name])

    nodes.lose("two")

    # Whether the one that is under way is taken nobody may know; the next ones are.
    asked(nodes, "talker", ["question", "echo", "Lost", 10.0])
    assert isinstance(asked(nodes, "talker", ["question", "echo", "Mia"]), str)
    turns = [turn.text for turn in echo.transcript().turns if turn.role == "user"]
    said = [turn for turn in turns if turn != "My cat is called Lost."]
    assert said == [f"My cat is called {name}." for name in ("Biscuit", "Tom", "Mia")]
    assert turns.count("My cat is called Lost.") <= 1
    assert nodes.cluster.place("echo").node != "two"


def test_a_behaviour_that_never_took_a_turn_outlives_its_node(open_nodes: OpenNodes) -> None:
    nodes = open_nodes("one", "two")
    diary = nodes.cluster.spawn("diary", behaviour="talking:Diary")
    place = nodes.cluster.place("diary")

    assert {place.node, place.replica} == {"one", "two"}
    nodes.lose(place.node)

    eventually(lambda: nodes.cluster.place("diary").node == place.replica)
    assert diary.request("told", timeout=WAIT).get(timeout=WAIT) == 1


@pytest.mark.slow
def test_a_behaviour_whose_node_lost_its_agent_takes_no_more_turns(open_nodes: OpenNodes) -> None:
    nodes = open_nodes("one", "two", "three")
    gate = spawned(nodes, "gate", "Gate", "two")
    Gate.opened.set()
    assert gate.request("Biscuit").get(timeout=WAIT) in ("stop", "length")
    Gate.opened.clear()
    Gate.entered.clear()
    try:
        handled = gate.request("Tom")
        assert Gate.entered.wait(WAIT)
        nodes.lose("two")
        eventually(lambda: nodes.cluster.place("gate").node != "two")
    finally:
        Gate.opened.set()

    with pytest.raises(Unanswered, match="two has lost its agent"):
        handled.get(timeout=WAIT)
    assert "My cat is called Tom." not in [turn.text for turn in gate.transcript().turns]


def test_who_behaves_leaves_memory_when_it_is_idle_and_has_no_timer(open_nodes: OpenNodes) -> None:
    nodes = open_nodes("one", served=1)
    ticking = nodes.cluster.spawn("ticking", behaviour="talking:Ticking")
    nodes.cluster.spawn("diary", behaviour="talking:Diary")
    diary = found(nodes, "diary")
    assert diary.request("told").get(timeout=WAIT) == 1

    nodes.cluster.spawn("third", behaviour="talking:Diary")

    # What it had in memory is gone with it.
    assert asked(nodes, "diary", "what?") == []
    before = ticking.request("how many?").get(timeout=WAIT)
    eventually(lambda: ticking.request("how many?").get(timeout=WAIT) > before)


def test_nothing_that_agents_say_crosses_readable_where_nodes_have_a_key(
    open_nodes: OpenNodes,
) -> None:
    nodes = open_nodes("one", "two", key=KEY)
    spawned(nodes, "talker", "Talker", "one")
    spawned(nodes, "diary", "Diary", "two")
    spawned(nodes, "picky", "Picky", "two")

    assert asked(nodes, "talker", ["question", "diary", "the secret word"]) == 1
    assert asked(nodes, "diary", "what?") == [["the secret word", "talker"]]
    kind, words = asked(nodes, "talker", ["question", "picky", "the secret word"])
    assert (kind, "the secret word" in words) == ("BehaviourFailed", True)

    assert not any(b"secret word" in record for record in nodes.transport.seen)
    assert not any(b"talking:" in record for record in nodes.transport.seen)
    stranger = nodes.connect(None)
    try:
        with pytest.raises(Exception, match="needs their key"):
            stranger.agents()[0].deliver("hello")
    finally:
        stranger.close()
