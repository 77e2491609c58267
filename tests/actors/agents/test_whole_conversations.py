"""Agents that are asked with whole conversations: what they say and what it costs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conversations import answered, as_if_told_at_once, ask
from makers import OpenSystem

from kvactors.actors import AgentSystem, Sampling, TurnFailed
from kvactors.core.conversation.hashing import common_prefix
from kvactors.core.errors import EmptyPrompt, InvalidInput
from kvactors.core.testing.models import Faulty, PlainTokenizer, snap_to_grid, tiny_model

SHORT = Sampling(max_tokens=8)
WAIT = 60
LONG = "a long beginning, and decade by decade " * 8
FIRST = [{"role": "user", "content": LONG}]


def halves(message: dict[str, str]) -> list[dict[str, str]]:
    text, middle = message["content"], len(message["content"]) // 2
    return [{"type": "text", "text": half} for half in (text[:middle], text[middle:])]


# -- what is answered ----------------------------------------------------------------------


def test_messages_are_remembered_and_answered_like_turns(
    chatting: Callable[..., AgentSystem],
) -> None:
    system = chatting(store=False)
    stateless, stateful = system.spawn("stateless"), system.spawn("stateful")

    first = ask(stateless, messages=FIRST)
    second = ask(stateless, messages=answered(FIRST, first, "be"))

    assert ask(stateful, LONG).token_ids == first.token_ids
    assert ask(stateful, "be").token_ids == second.token_ids
    assert stateless.transcript() == stateful.transcript()
    assert (first.match, second.match) == ("extend", "extend")


def test_the_same_messages_are_answered_the_same_again(
    chatting: Callable[..., AgentSystem],
) -> None:
    alice = chatting(store=False).spawn("alice")
    first = ask(alice, messages=FIRST)
    remembered = alice.transcript()

    again = ask(alice, messages=answered(FIRST, first))

    assert again.match == "exact"
    assert again.token_ids == first.token_ids
    assert alice.transcript() == remembered


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_edited_messages_are_answered_as_if_told_at_once(
    chatting: Callable[..., AgentSystem], threshold: float
) -> None:
    system = chatting(store=False)
    alice = system.spawn("alice")
    ask(alice, messages=FIRST)
    edited = [{"role": "user", "content": LONG[:200] + "X"}]

    reply = ask(alice, messages=edited, threshold=threshold)

    assert reply.match == "diverge"
    assert [turn.text for turn in alice.transcript().turns] == [LONG[:200] + "X", reply.text]
    assert reply.token_ids == as_if_told_at_once(system, alice, reply)


def test_raw_text_goes_on_where_the_transcript_ends(chatting: Callable[..., AgentSystem]) -> None:
    system = chatting(store=False)
    alice = system.spawn("alice")
    first = ask(alice, LONG, match=True)

    reply = ask(alice, LONG + first.text + " be", match=True)

    assert (first.match, reply.match) == ("extend", "extend")
    assert alice.transcript().turns[2].text == " be"
    assert reply.token_ids == as_if_told_at_once(system, alice, reply)


def test_the_transcripts_own_text_is_exact(chatting: Callable[..., AgentSystem]) -> None:
    alice = chatting(store=False).spawn("alice")
    first = ask(alice, "Hello")

    again = ask(alice, alice.transcript().text, match=True)

    assert (again.match, again.token_ids) == ("exact", first.token_ids)


def test_an_ordinary_turn_matches_nothing(chatting: Callable[..., AgentSystem]) -> None:
    alice = chatting(store=False).spawn("alice")

    assert ask(alice, "Hello").match is None
    assert alice.observe("be").get(timeout=WAIT).match is None


def test_a_stream_takes_messages_too(chatting: Callable[..., AgentSystem]) -> None:
    alice = chatting(store=False).spawn("alice")

    with alice.stream(messages=FIRST, sampling=SHORT) as stream:
        text = "".join(piece.text for piece in stream)

    assert (stream.reply.text, stream.reply.match) == (text, "extend")


def test_text_parts_are_one_text(chatting: Callable[..., AgentSystem]) -> None:
    alice = chatting(store=False).spawn("alice")
    said = answered(FIRST, ask(alice, messages=FIRST), "And now?")

    reply = ask(alice, messages=[{**message, "content": halves(message)} for message in said])

    assert reply.match == "extend"
    assert [turn.text for turn in alice.transcript().turns][:3] == [m["content"] for m in said]


def test_what_is_no_text_part_is_named(chatting: Callable[..., AgentSystem]) -> None:
    alice = chatting(store=False).spawn("alice")
    image = [{"type": "text", "text": "Look: "}, {"type": "image_url", "image_url": "a.png"}]

    with pytest.raises(InvalidInput, match=r"messages\[1\]\.content\[1\].*image_url"):
        alice.ask(messages=[*FIRST, {"role": "user", "content": image}])


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"prompt": "a", "messages": FIRST},
        {"prompt": [1], "match": True},
        {"messages": "a"},
        {"messages": ["a"]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "", "content": "a"}]},
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "text": "a"}]}]},
        {"messages": [{"role": "user", "content": ["a"]}]},
        {"messages": [{"role": "user", "content": {"type": "text", "text": "a"}}]},
        {"prompt": "a", "match": True, "threshold": 1.5},
        {"prompt": "a", "match": True, "threshold": "high"},
    ],
)
def test_what_is_no_conversation_is_refused_at_once(
    open_system: OpenSystem, arguments: dict[str, Any]
) -> None:
    alice = open_system(store=False).spawn("alice")

    with pytest.raises(InvalidInput):
        alice.ask(**arguments)


def test_no_messages_are_an_empty_prompt(open_system: OpenSystem) -> None:
    with pytest.raises(EmptyPrompt):
        open_system(store=False).spawn("alice").ask(messages=[])


def test_a_diverging_turn_that_fails_leaves_no_trace(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    model = Faulty(snap_to_grid(tiny_model(seed=3)))
    faulty = lambda: (model, PlainTokenizer())  # noqa: E731
    system = open_system(faulty, model_name="faulty")
    alice = system.spawn("alice")
    ask(alice, "a" * 50, match=True)
    remembered = alice.transcript()
    model.arm(poison=ord("!"))

    with pytest.raises(TurnFailed):
        ask(alice, "a" * 45 + "!", match=True)
    system.stop()

    assert alice.transcript() == remembered
    restored = open_system(faulty, model_name="faulty").spawn("alice")
    assert restored.transcript() == remembered


# -- what it costs -------------------------------------------------------------------------


def test_answering_again_reuses_all_but_one_token(chatting: Callable[..., AgentSystem]) -> None:
    alice = chatting(store=False).spawn("alice")
    first = ask(alice, messages=FIRST)

    again = ask(alice, messages=answered(FIRST, first))

    assert again.usage.prompt_tokens == first.usage.prompt_tokens
    assert again.usage.reused_tokens == first.usage.prompt_tokens - 1
    assert again.usage.prefilled_tokens == 1


def test_one_more_message_prefills_only_what_is_new(chatting: Callable[..., AgentSystem]) -> None:
    alice = chatting(store=False).spawn("alice")
    first = ask(alice, messages=FIRST)
    known = len(alice.transcript().token_ids)

    second = ask(alice, messages=answered(FIRST, first, "be"))

    assert second.usage.reused_tokens == known - 1


def test_edited_messages_reuse_the_tokens_before_the_edit(
    chatting: Callable[..., AgentSystem],
) -> None:
    alice = chatting(store=False).spawn("alice")
    ask(alice, messages=FIRST)
    before = alice.transcript().token_ids

    reply = ask(alice, messages=[{"role": "user", "content": LONG + "X"}], threshold=0)

    assert reply.usage.reused_tokens == common_prefix(before, alice.transcript().token_ids) > 50
