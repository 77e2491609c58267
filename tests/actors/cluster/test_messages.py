"""Behaviours in a cluster, and the messages between their agents: of one process."""

from collections.abc import Callable
from typing import Any

import pytest
from talking import Diary, Echo, Gate

from kvactors import AgentBehaviour, Cluster, Supervision, WaitTimeout
from kvactors.actors.cluster.protocol.errors import AgentExists
from kvactors.core.errors import BehaviourFailed, InvalidConfig, InvalidInput, TurnTimeout

WAIT = 60

Open = Callable[[], Cluster]


def asked(cluster: Cluster, agent: str, message: Any) -> Any:
    found = cluster.find(agent)
    assert found is not None
    return found.request(message, timeout=WAIT).get(timeout=WAIT)


def questions(cluster: Cluster, agent: str) -> list[str]:
    """What it was told by its behaviour."""
    found = cluster.find(agent)
    assert found is not None
    return [turn.text for turn in found.transcript().turns if turn.role == "user"]


def test_a_behaviour_thinks_and_answers_and_begins_again_with_its_node(open_cluster: Open) -> None:
    with open_cluster() as cluster:
        echo = cluster.spawn("echo", system_prompt="You answer.", behaviour=Echo)
        said = echo.request("Biscuit").get(timeout=WAIT)
        assert [turn.text for turn in echo.transcript().turns][1:] == [said]
    with open_cluster() as cluster:
        cluster.spawn("echo", system_prompt="You answer.", behaviour="talking:Echo")
        asked(cluster, "echo", "Tom")
        assert questions(cluster, "echo") == ["My cat is called Biscuit.", "My cat is called Tom."]


def test_agents_tell_and_ask_each_other_in_order(open_cluster: Open) -> None:
    cluster = open_cluster()
    cluster.spawn("talker", behaviour="talking:Talker")
    diary = cluster.spawn("diary", behaviour="talking:Diary")
    value = {"a": [1, None, b"x", 0.5], 7: "\ud800"}

    assert asked(cluster, "talker", ["pour", "diary", 0, 500]) == 500
    assert asked(cluster, "talker", ["question", "diary", value]) == 501
    diary.deliver((1, 2)).get(timeout=WAIT)

    said = [[number, "talker"] for number in [*range(500), value]]
    assert asked(cluster, "diary", "what?") == [*said, [[1, 2], None]]


def test_a_message_of_many_and_an_answer_to_its_sender(open_cluster: Open) -> None:
    cluster = open_cluster()
    for name in ("diary", "other"):
        cluster.spawn(name, behaviour=Diary)
    cluster.spawn("talker", behaviour="talking:Talker")
    cluster.spawn("echo", behaviour=Echo)

    asked(cluster, "talker", ["everybody", ["diary", "other"], "hello"])

    assert asked(cluster, "diary", "what?") == [["hello", "talker"]]
    assert asked(cluster, "other", "what?") == [["hello", "talker"]]


def test_text_to_an_agent_without_a_behaviour_is_a_turn(open_cluster: Open) -> None:
    cluster = open_cluster()
    plain = cluster.spawn("plain", system_prompt="You answer from memory.")
    cluster.spawn("talker", behaviour="talking:Talker")

    reply = plain.request("My cat is called Biscuit.").get(timeout=WAIT)
    assert reply.durable.get(timeout=WAIT)
    answer, durable = asked(cluster, "talker", ["turned", "plain", "What is my cat called?"])

    assert (answer, durable) == ("Your cat is called Biscuit.", True)
    asks = questions(cluster, "plain")
    assert asks == ["My cat is called Biscuit.", "What is my cat called?"]
    refused = asked(cluster, "talker", ["question", "plain", 7])
    assert refused == ["Undelivered", "'plain' has no behaviour that takes this"]


def test_a_child_that_a_behaviour_spawns_is_an_agent_of_the_cluster(open_cluster: Open) -> None:
    cluster = open_cluster()
    cluster.spawn("talker", behaviour="talking:Talker")

    assert asked(cluster, "talker", ["family", "child"]) == 1
    assert asked(cluster, "child", "what?") == [["hello", "talker"]]


def test_what_it_raises_reaches_who_asked_and_supervision_says_how_it_goes_on(
    open_cluster: Open,
) -> None:
    cluster = open_cluster()
    restart = Supervision("restart", backoff=0.0)
    cluster.spawn("picky", behaviour="talking:Picky", supervision=restart)
    stops = cluster.spawn("stops", behaviour="talking:Picky")

    for message, said in [("key", "raised KeyError: 'key'"), ("odd", "raised ValueError: odd")]:
        with pytest.raises(BehaviourFailed, match=said):
            asked(cluster, "picky", message)
    with pytest.raises(InvalidInput, match=r"builtins\.object"):
        asked(cluster, "picky", "object")
    with pytest.raises(BehaviourFailed):
        stops.request("odd").get(timeout=WAIT)
    with pytest.raises(Exception, match="has ended") as ended:
        stops.deliver("odd").get(timeout=WAIT)
    assert type(ended.value).__name__ == "Undelivered"


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ("object", "InvalidInput", "builtins.object"),
        ("all", "NotAcrossNodes", "name them"),
        ("topic", "NotAcrossNodes", "a topic is of one system"),
        ("published", "NotAcrossNodes", "a topic is of one system"),
        ("watched", "NotAcrossNodes", "ask it, with a timeout"),
        ("stopped", "NotAcrossNodes", "send it a message"),
    ],
)
def test_what_does_not_cross_is_refused_where_it_is_tried(
    open_cluster: Open, what: str, error: str, words: str
) -> None:
    cluster = open_cluster()
    cluster.spawn("talker", behaviour="talking:Talker")

    kind, said = asked(cluster, "talker", ["odd", what])

    assert kind == error
    assert words in said


class Here(AgentBehaviour):
    """Found by its name."""

    class Within(AgentBehaviour):
        """And so is this."""


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ("nowhere:Class", "No module named 'nowhere'"),
        ("talking:Nobody", "cannot be imported here"),
        ("talking", "named module:Class"),
        ("talking:SHORT", "no subclass of AgentBehaviour"),
        ("talking:Blocked", "is blocking"),
        (Here(), "each node makes one by its name"),
        (type("Here", (AgentBehaviour,), {"__module__": __name__}), "would not find it"),
    ],
)
def test_a_behaviour_that_no_node_could_make_is_refused_before_anything_is_stored(
    open_cluster: Open, behaviour: Any, words: str
) -> None:
    cluster = open_cluster()

    with pytest.raises(InvalidConfig, match=words):
        cluster.spawn("odd", behaviour=behaviour)

    assert cluster.find("odd") is None


def test_a_behaviour_is_part_of_what_an_agent_was_spawned_with(open_cluster: Open) -> None:
    cluster = open_cluster()
    cluster.spawn("here", behaviour=Here.Within)

    with pytest.raises(AgentExists):
        cluster.spawn("here", behaviour=Here)
    with pytest.raises(InvalidConfig, match="a fork has"):
        cluster.spawn("child", from_="here", behaviour=Here)
    with pytest.raises(InvalidConfig, match="supervision is of a behaviour"):
        cluster.spawn("other", supervision=Supervision("restart"))
    with pytest.raises(InvalidConfig, match="no parent to escalate to"):
        cluster.spawn("other", behaviour=Here, supervision=Supervision("escalate"))


def test_who_waits_for_itself_is_told_when_the_time_is_over(open_cluster: Open) -> None:
    cluster = open_cluster()
    cluster.spawn("one", behaviour="talking:Talker")
    cluster.spawn("two", behaviour="talking:Talker")

    circle = ["question", "two", ["question", "one", ["tell", "one"]], 1.0]
    kind, _ = asked(cluster, "one", circle)
    assert kind == "TurnTimeout"
    assert asked(cluster, "one", ["tell", "two"]) == 0


def test_a_full_mailbox_holds_up_who_sends_and_loses_nothing(open_cluster: Open) -> None:
    cluster = open_cluster()
    late = cluster.spawn("late", behaviour="talking:Late")
    talker = cluster.spawn("talker", behaviour="talking:Talker")
    Gate.opened.clear()
    try:
        pouring = talker.request(["pour", "late", 0, 1500])
        with pytest.raises(WaitTimeout):
            pouring.get(timeout=0.3)
    finally:
        Gate.opened.set()

    assert pouring.get(timeout=WAIT) == 1500
    assert asked(cluster, late.agent_id, "all") == [*range(1500), "all"]


def test_a_request_that_takes_too_long_is_given_up(open_cluster: Open) -> None:
    cluster = open_cluster()
    gate = cluster.spawn("gate", behaviour="talking:Gate")

    Gate.opened.clear()
    Gate.left.clear()
    try:
        with pytest.raises(TurnTimeout):
            gate.request("Biscuit", timeout=0.05).get(timeout=WAIT)
        # Its time began there when it came.
        assert Gate.left.wait(WAIT)
    finally:
        Gate.opened.set()
    # What was begun for it has ended.
    assert gate.request("Tom").get(timeout=WAIT) in ("stop", "length")
    assert questions(cluster, "gate") == ["My cat is called Tom."]
