"""Turns with a request id: taken once, however often, and over whatever restart, they are asked."""

from pathlib import Path
from typing import Any

import pytest
from conversations import chat_model
from makers import OpenSystem

from kvactors.actors import Agent, AgentSystem, InvalidInput, Reply, Sampling, SaveFailed
from kvactors.actors.testing import FailingFiles, FaultyModel
from kvactors.core.conversation import answered
from kvactors.core.conversation.answered import AnsweredRequests
from kvactors.core.conversation.turn import Turn
from kvactors.core.errors import TurnFailed
from kvactors.persistence.store.store import Store

SHORT = Sampling(max_tokens=6)
WAIT = 60


def asked(agent: Agent, prompt: str, request_id: str | None = None) -> Reply:
    reply: Reply = agent.ask(prompt, sampling=SHORT, request_id=request_id).get(timeout=WAIT)
    return reply


def rewound(open_system: OpenSystem, store: Path) -> tuple[AgentSystem, Agent, Reply]:
    """A system with an agent that takes back its only turn, `r1`; and what it answered."""
    system = open_system(chat_model, store=store)
    alice = system.spawn("alice")
    once = asked(alice, "hello", "r1")
    alice.rewind().get(timeout=WAIT)
    return system, alice, once


def what(reply: Reply) -> tuple[Any, ...]:
    return reply.text, reply.token_ids, reply.finish_reason, reply.durable.get(timeout=WAIT)


def test_a_turn_that_is_asked_again_is_answered_from_the_ledger_and_not_taken(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    first = open_system(chat_model, store=tmp_path)
    alice = first.spawn("alice")
    once = asked(alice, "hello", "r1")
    asked(alice, "and on", "r2")
    turns = alice.transcript().turns

    again = asked(alice, "hello", "r1")
    unchanged = alice.transcript().turns == turns
    first.stop(timeout=WAIT)
    restarted = open_system(chat_model, store=tmp_path).spawn("alice")
    later = asked(restarted, "hello", "r1")

    assert unchanged
    assert what(once) == what(again) == what(later)
    assert (once.recorded, again.recorded, later.recorded) == (False, True, True)
    assert later.usage.generated_tokens == len(once.token_ids)
    assert restarted.transcript().turns == turns


def test_without_an_id_or_with_another_it_is_another_turn(open_system: OpenSystem) -> None:
    alice = open_system(chat_model, store=False).spawn("alice")

    replies = [asked(alice, "hello", name) for name in ("r1", None, None, "r2")]

    assert not any(reply.recorded for reply in replies)
    assert len(alice.transcript().turns) == 8
    assert asked(alice, "hello", "r2").durable.get(timeout=WAIT) is False


def test_a_request_whose_turn_was_rewound_is_not_taken_again(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    system, alice, once = rewound(open_system, tmp_path)

    again = asked(alice, "hello", "r1")
    system.stop(timeout=WAIT)
    restarted = open_system(chat_model, store=tmp_path).spawn("alice")

    assert what(again) == what(once) == what(asked(restarted, "hello", "r1"))
    assert restarted.transcript().turns == ()


def test_a_turn_that_failed_is_taken_when_it_is_asked_again(open_system: OpenSystem) -> None:
    model = FaultyModel()
    alice = open_system(model, store=False).spawn("alice")
    model.arm(step=1)
    with pytest.raises(TurnFailed):
        asked(alice, "hello", "r1")

    taken = asked(alice, "hello", "r1")

    assert not taken.recorded
    assert len(alice.transcript().turns) == 2


def test_what_is_observed_or_told_under_an_id_is_remembered_once(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    system = open_system(chat_model, store=tmp_path)
    alice = system.spawn("alice")

    seen = [alice.observe("a fact", request_id="o").get(timeout=WAIT) for _ in range(2)]
    for _ in range(2):
        alice.tell("note it", sampling=SHORT, request_id="t")
    system.wait_idle(timeout=WAIT)

    assert [reply.recorded for reply in seen] == [False, True]
    assert what(seen[0]) == what(seen[1])
    assert [turn.role for turn in alice.transcript().turns] == ["user", "user", "assistant"]


def test_a_stream_of_an_answered_request_has_its_text_and_tokens(open_system: OpenSystem) -> None:
    alice = open_system(chat_model, store=False).spawn("alice")
    once = asked(alice, "hello", "r1")

    with alice.stream("hello", sampling=SHORT, request_id="r1") as stream:
        pieces = list(stream)

    assert "".join(piece.text for piece in pieces) == once.text
    assert tuple(t for piece in pieces for t in piece.token_ids) == once.token_ids
    assert stream.reply.recorded


def test_a_fork_knows_the_requests_of_its_parent_before_and_after_a_restart(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    system = open_system(chat_model, store=tmp_path)
    alice = system.spawn("alice")
    once = asked(alice, "hello", "r1")
    bob = system.spawn("bob", from_=alice)
    asked(alice, "for alice alone", "r2")

    at_once = asked(bob, "hello", "r1")
    own = asked(bob, "for alice alone", "r2")
    system.stop(timeout=WAIT)
    restarted = open_system(chat_model, store=tmp_path).spawn("bob")

    assert what(at_once) == what(once) == what(asked(restarted, "hello", "r1"))
    assert not own.recorded


def test_a_fork_knows_the_requests_of_a_parent_whose_turns_are_all_rewound(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    system, alice, once = rewound(open_system, tmp_path)
    asked(system.spawn("bob", from_=alice), "and on")
    system.stop(timeout=WAIT)
    restarted = open_system(chat_model, store=tmp_path).spawn("bob")

    again = asked(restarted, "hello", "r1")

    assert again.recorded
    assert again.text == once.text
    assert [turn.text for turn in restarted.transcript().turns][::2] == ["and on"]


def test_an_answer_given_again_is_durable_only_when_its_turn_is(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    disk = FailingFiles(name="append", path="*ledger.log")
    disk.armed = False
    system = open_system(chat_model, store=tmp_path, disk=disk)
    alice = system.spawn("alice")
    assert asked(alice, "hello").durable.get(timeout=WAIT)
    disk.armed = True
    lost = asked(alice, "and on", "r1")
    with pytest.raises(SaveFailed):
        lost.durable.get(timeout=WAIT)

    refused = asked(alice, "and on", "r1")
    with pytest.raises(SaveFailed):
        refused.durable.get(timeout=WAIT)
    disk.armed = False
    accepted = asked(alice, "and on", "r1")

    assert accepted.durable.get(timeout=WAIT) is True
    assert accepted.recorded


def test_the_id_stands_in_the_ledger_and_nowhere_else(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    system = open_system(chat_model, store=tmp_path)
    alice = system.spawn("alice")
    asked(alice, "hello", "r1")
    asked(alice, "and on")
    system.stop(timeout=WAIT)

    store = Store(tmp_path)
    records = store.read_ledger("alice") or ()
    store.close()

    assert [record.get("request") for record in records] == ["r1", None]
    assert {record["version"] for record in records} == {2}


@pytest.mark.parametrize("wrong", ["", "x" * 201, 7, b"r1", "half \udcc3"])
def test_an_id_that_is_none_is_refused_before_anything_is_done(
    open_system: OpenSystem, wrong: Any
) -> None:
    alice = open_system(chat_model, store=False).spawn("alice")

    for take in (alice.ask, alice.stream, alice.tell, alice.observe):
        with pytest.raises(InvalidInput, match="request_id"):
            take("hello", request_id=wrong)

    assert asked(alice, "hello", "x" * 200).recorded is False


def test_the_latest_ids_are_known_and_no_more() -> None:
    requests = AnsweredRequests()
    turn = Turn("assistant", "yes", (1,), "yes", finish="stop")

    for number in range(answered.MOST + 1):
        requests.note(str(number), [turn], 1)

    assert len(requests) == answered.MOST
    assert requests.get("0") is None
    assert requests.get(str(answered.MOST)) == (turn,)
