"""Requests that are taken back, and rewinds under an id: done once, and known over restarts."""

from pathlib import Path

import pytest
from conversations import chat_model
from makers import OpenSystem

from kvactors.actors import Agent, InvalidInput, Reply, RewindOutOfRange, Sampling
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.testing import FaultyModel
from kvactors.actors.turns.options import withdrawing

SHORT = Sampling(max_tokens=6)
WAIT = 60


def withdrawn(agent: Agent, request_id: str) -> ReplyFuture[Reply]:
    return agent.open_turn(withdrawing(request_id)).reply


def turns(agent: Agent) -> list[str]:
    return [turn.text for turn in agent.transcript().turns if turn.role == "user"]


def test_a_withdrawn_request_is_never_taken_before_or_after_a_restart(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    system = open_system(chat_model, store=tmp_path)
    alice = system.spawn("alice", system_prompt="You are Alice.")

    none = withdrawn(alice, "r1").get(timeout=WAIT)
    late = alice.ask("hello", request_id="r1").get(timeout=WAIT)
    seen = alice.ask("and on", sampling=SHORT, request_id="r2").get(timeout=WAIT)
    system.stop(timeout=WAIT)
    again = open_system(chat_model, store=tmp_path).spawn("alice")

    assert none.durable.get(timeout=WAIT) is True
    for reply in (none, late, again.ask("hello", request_id="r1").get(timeout=WAIT)):
        assert (reply.text, reply.finish_reason, reply.recorded) == ("", "cancelled", True)
    assert turns(again) == ["and on"]
    assert again.system_prompt == "You are Alice."
    assert withdrawn(again, "r2").get(timeout=WAIT).text == seen.text


def test_a_turn_that_runs_when_its_request_is_withdrawn_ends_by_itself_and_is_the_answer(
    open_system: OpenSystem,
) -> None:
    model = FaultyModel()
    alice = open_system(model, store=False).spawn("alice")
    gate = model.hold()
    asked = alice.ask("hello", sampling=SHORT, request_id="r1")
    model.reached.wait(WAIT)

    ended = withdrawn(alice, "r1")
    waits = not ended.done
    gate.set()

    assert waits
    assert ended.get(timeout=WAIT).token_ids == asked.get(timeout=WAIT).token_ids
    assert turns(alice) == ["hello"]


def test_a_rewind_with_an_id_is_done_once_and_then_says_what_is_left(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    system = open_system(chat_model, store=tmp_path)
    alice = system.spawn("alice")
    for prompt in ("one", "two", "three"):
        alice.ask(prompt, sampling=SHORT).get(timeout=WAIT)

    once = [alice.rewind(request_id="back").get(timeout=WAIT) for _ in range(3)]
    system.stop(timeout=WAIT)
    again = open_system(chat_model, store=tmp_path).spawn("alice")
    later = again.rewind(request_id="back").get(timeout=WAIT)

    assert [rewound.turns for rewound in (*once, later)] == [4] * 4
    assert all(rewound.durable.get(timeout=WAIT) for rewound in (*once, later))
    assert turns(again) == ["one", "two"]
    assert again.rewind(2, request_id="further back").get(timeout=WAIT).turns == 0


def test_a_rewind_that_failed_is_tried_when_it_is_asked_again(open_system: OpenSystem) -> None:
    alice = open_system(chat_model, store=False).spawn("alice")
    with pytest.raises(RewindOutOfRange):
        alice.rewind(request_id="back").get(timeout=WAIT)
    alice.ask("hello", sampling=SHORT).get(timeout=WAIT)

    assert alice.rewind(request_id="back").get(timeout=WAIT).turns == 0


def test_ids_are_checked_before_anything_is_done(open_system: OpenSystem) -> None:
    alice = open_system(chat_model, store=False).spawn("alice")

    for wrong in ("", "x" * 201, 7):
        with pytest.raises(InvalidInput, match="request_id"):
            alice.rewind(request_id=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="not both"):
        alice.rewind(1, to_token=1)
