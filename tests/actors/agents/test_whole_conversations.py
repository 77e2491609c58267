"""Agents that are asked with whole conversations, and rewound: what they say and what it costs."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import build, chat_format

from kvactors.actors import Agent, AgentSystem, Reply, RewindOutOfRange, Sampling, TurnFailed
from kvactors.core.conversation.hashing import common_prefix
from kvactors.core.errors import EmptyPrompt, InvalidInput
from kvactors.core.testing.models import Faulty, PlainTokenizer, snap_to_grid, tiny_model
from kvactors.persistence.store.store import Store

OpenSystem = Callable[..., AgentSystem]
SHORT = Sampling(max_tokens=8)
WAIT = 60
LONG = "a long beginning, and decade by decade " * 8
FIRST = [{"role": "user", "content": LONG}]


def chat_model() -> tuple[Any, Any]:
    size = build("bytes").get_vocab_size()
    model = snap_to_grid(tiny_model(seed=5, vocab_size=size))
    return model, chat_format("bytes", "chatml").tokenizer


@pytest.fixture
def chatting(open_system: OpenSystem) -> Callable[..., AgentSystem]:
    """Systems over a random model with a byte-level tokenizer and a chat template."""
    return lambda **options: open_system(chat_model, attention="packed", **options)


def ask(agent: Agent, *args: Any, **options: Any) -> Reply:
    reply: Reply = agent.ask(*args, sampling=SHORT, **options).get(timeout=WAIT)
    return reply


def answered(messages: list[dict[str, str]], reply: Reply, *more: str) -> list[dict[str, str]]:
    """The conversation with the answer, and further questions."""
    said = [*messages, {"role": "assistant", "content": reply.text}]
    return said + [{"role": "user", "content": text} for text in more]


def as_if_told_at_once(system: AgentSystem, agent: Agent, reply: Reply) -> tuple[int, ...]:
    """What an agent answers that is given the same tokens as its first prompt."""
    tokens = agent.transcript().token_ids
    prompt = tokens[: len(tokens) - len(reply.token_ids)]
    return ask(system.spawn("told at once"), list(prompt)).token_ids


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


# -- rewinding -----------------------------------------------------------------------------


def test_a_rewound_turn_is_answered_again_the_same(chatting: Callable[..., AgentSystem]) -> None:
    alice = chatting(store=False).spawn("alice")
    ask(alice, LONG)
    before = alice.transcript()
    first = ask(alice, "be")

    rewound = alice.rewind().get(timeout=WAIT)

    assert (rewound.turns, rewound.tokens) == (2, len(before.token_ids))
    assert alice.transcript() == before
    assert ask(alice, "be").token_ids == first.token_ids


def test_a_rewind_to_a_token_goes_on_from_there(chatting: Callable[..., AgentSystem]) -> None:
    system = chatting(store=False)
    alice = system.spawn("alice")
    ask(alice, LONG)
    tokens = alice.transcript().token_ids

    rewound = alice.rewind(to_token=50).get(timeout=WAIT)
    kept = alice.transcript().token_ids
    reply = ask(alice, [7, 8, 9])

    assert rewound.tokens == 50
    assert kept == tokens[:50]
    assert reply.token_ids == as_if_told_at_once(system, alice, reply)


@pytest.mark.parametrize("wanted", [{"turns": 2}, {"to_token": 10_000}])
def test_an_impossible_rewind_forgets_nothing(
    chatting: Callable[..., AgentSystem], wanted: dict[str, int]
) -> None:
    alice = chatting(store=False).spawn("alice")
    ask(alice, "Hello")
    remembered = alice.transcript()

    with pytest.raises(RewindOutOfRange):
        alice.rewind(**wanted).get(timeout=WAIT)

    assert alice.transcript() == remembered


@pytest.mark.parametrize(
    "wanted", [{"turns": 0}, {"turns": True}, {"to_token": -1}, {"turns": 1, "to_token": 1}]
)
def test_what_is_no_rewind_is_refused_at_once(
    open_system: OpenSystem, wanted: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        open_system(store=False).spawn("alice").rewind(**wanted)


def test_a_rewind_waits_for_the_prompts_before_it_and_goes_before_those_after(
    open_system: OpenSystem,
) -> None:
    model = Faulty(snap_to_grid(tiny_model(seed=3)))
    gate = threading.Event()
    alice = open_system(lambda: (model, PlainTokenizer()), store=False).spawn("alice")
    model.arm(hold=gate)

    first = alice.ask([1, 2], sampling=SHORT)
    assert model.reached.wait(WAIT)
    rewound, second = alice.rewind(), alice.ask([3, 4], sampling=SHORT)
    gate.set()

    assert first.get(timeout=WAIT).token_ids
    assert rewound.get(timeout=WAIT).tokens == 0
    reply = second.get(timeout=WAIT)
    assert alice.transcript().token_ids == (3, 4, *reply.token_ids)


# -- what is stored ------------------------------------------------------------------------


def test_a_restored_agent_knows_what_was_kept_and_nothing_that_was_taken_back(
    chatting: Callable[..., AgentSystem],
) -> None:
    def talk(system: AgentSystem) -> Agent:
        alice = system.spawn("alice")
        first = ask(alice, messages=FIRST)
        ask(alice, messages=answered(FIRST, first, "Hello world"))
        ask(alice, messages=answered(FIRST, first, "Hello hello"))
        ask(alice, "abc")
        alice.rewind().get(timeout=WAIT)
        return alice

    never_stopped = talk(chatting(store=False))
    expected = ask(never_stopped, "be")
    system = chatting()
    alice = talk(system)
    remembered = alice.transcript()
    system.stop()

    restored = chatting().spawn("alice")

    assert restored.transcript() == remembered
    assert ask(restored, "be").token_ids == expected.token_ids


@pytest.mark.parametrize("stored", [True, False])
def test_a_rewind_says_when_it_is_on_disk(
    chatting: Callable[..., AgentSystem], stored: bool
) -> None:
    alice = (chatting() if stored else chatting(store=False)).spawn("alice")
    ask(alice, "Hello")

    assert alice.rewind().get(timeout=WAIT).durable.get(timeout=WAIT) is stored


def test_a_rewind_and_the_turn_that_made_it_are_one_record(
    chatting: Callable[..., AgentSystem], tmp_path: Path
) -> None:
    system = chatting()
    alice = system.spawn("alice")
    ask(alice, messages=FIRST)
    ask(alice, messages=[{"role": "user", "content": LONG + "X"}])
    system.stop()

    store = Store(tmp_path / "store")
    records = store.read_ledger("alice") or ()
    store.close()

    assert [record.get("keep") for record in records] == [None, 0]
    assert [len(record["turns"]) for record in records] == [2, 2]


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


def test_a_rewound_agent_reuses_what_is_left_of_its_cache(
    chatting: Callable[..., AgentSystem],
) -> None:
    alice = chatting(store=False).spawn("alice")
    ask(alice, LONG)
    ask(alice, "Hello world")
    before = alice.transcript().token_ids
    alice.rewind().get(timeout=WAIT)

    reply = ask(alice, "Hello hello")

    assert reply.cache == "hot"
    assert reply.usage.reused_tokens == common_prefix(before, alice.transcript().token_ids) > 50


def test_a_rewound_agent_reuses_its_cache_after_a_restart(
    chatting: Callable[..., AgentSystem],
) -> None:
    first = chatting()
    ask(first.spawn("alice"), LONG * 4)
    kept = len(first.spawn("alice").transcript().token_ids)
    ask(first.spawn("alice"), "Hello world")
    first.spawn("alice").rewind()
    first.stop()

    reply = ask(chatting().spawn("alice"), "Hello hello")

    assert reply.cache == "warm"
    # Segments are kept whole or not at all; the first one ends within the first turn.
    assert 0 < reply.usage.reused_tokens <= kept + 20
