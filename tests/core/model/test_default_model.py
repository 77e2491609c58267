"""The model that ships in the package does its one thing, through a restart."""

from pathlib import Path
from typing import Any

import pytest
from makers import OpenSystem

from kvactors.actors import Sampling
from kvactors.core.errors import ContextExceeded
from kvactors.core.model.options import DEFAULT_MODEL, DRAFT_MODEL

WAIT = 60
TOLD = (
    "Ada lives in Paris. Ada likes tea.",
    "The code of the garage is 4312.",
    "My name is Zorblat.",
    "The key is in the drawer. Tom is 34 years old.",
    "The bakery opens at 8. The meeting is on Monday.",
    "Ada works as a baker. The lamp costs 40 euros. My favourite colour is blue.",
)
ASKED = {
    "Where does Ada live?": "Ada lives in Paris.",
    "What does Ada like?": "Ada likes tea.",
    "What is the code of the garage?": "The code of the garage is 4312.",
    "What is my name?": "Your name is Zorblat.",
    "Where is the key?": "The key is in the drawer.",
    "How old is Tom?": "Tom is 34 years old.",
    "When does the bakery open?": "The bakery opens at 8.",
    "When is the meeting?": "The meeting is on Monday.",
    "What is my favorite color?": "Your favourite colour is blue.",
    "What is Ada's job?": "Ada works as a baker.",
    "How much does the lamp cost?": "The lamp costs 40 euros.",
    "What is the code of the shed?": "I do not know.",
    "Where does Tom live?": "I do not know.",
}


def test_the_model_is_small_enough_to_ship() -> None:
    assert sum(path.stat().st_size for path in DEFAULT_MODEL.iterdir()) <= 6_000_000


def test_what_drafts_for_it_is_small_and_has_its_tokens() -> None:
    assert sum(path.stat().st_size for path in DRAFT_MODEL.iterdir()) <= 1_500_000
    ours, its = (folder / "tokenizer.json" for folder in (DEFAULT_MODEL, DRAFT_MODEL))
    assert its.read_bytes() == ours.read_bytes()


def test_the_readmes_example_is_answered_to_the_letter(open_system: OpenSystem) -> None:
    alice = open_system("default").spawn("alice", system_prompt="You answer from memory.")
    alice.ask("My cat is called Biscuit.").get(timeout=WAIT)

    assert (
        alice.ask("What is my cat called?").get(timeout=WAIT).text == "Your cat is called Biscuit."
    )
    assert alice.ask("What is my dog called?").get(timeout=WAIT).text == "I do not know."


def test_a_choice_has_the_tokens_that_the_model_says_by_itself(open_system: OpenSystem) -> None:
    system = open_system("default", store=False)
    said = system.spawn("alice").ask("My cat is called Biscuit.").get(timeout=WAIT)

    chosen = system.spawn("bob").ask(
        "My cat is called Biscuit.", sampling=Sampling(choices=("nothing", said.text))
    )

    assert said.finish_reason == "stop"
    assert chosen.get(timeout=WAIT).token_ids == said.token_ids


@pytest.mark.parametrize("word", ["a" * 100_000, "Zorblat" * 3_000])
def test_a_long_word_is_tokenized_whole(open_system: OpenSystem, word: str) -> None:
    chat = open_system("default", store=False).chat

    assert chat.decode(chat.encode(word)) == word


@pytest.mark.parametrize(
    "far_too_long",
    [
        {"prompt": "word " * 450_000},
        {"prompt": "word " * 450_000, "match": True},
        {"messages": [{"role": "user", "content": "word " * 225_000}] * 2},
    ],
)
def test_what_is_far_beyond_the_context_is_refused_before_it_is_tokenized(
    open_system: OpenSystem, far_too_long: dict[str, Any]
) -> None:
    system = open_system("default", store=False)
    alice, encoded = system.spawn("alice"), list[str]()
    encode = system.chat.encode
    system.chat.encode = lambda text: encoded.append(text) or encode(text)  # type: ignore

    with pytest.raises(ContextExceeded, match=r"2250000 characters .* 32768 tokens.* 14 char"):
        alice.ask(**far_too_long).get(timeout=WAIT)

    assert encoded == []
    assert alice.ask("My cat is called Biscuit.").get(timeout=WAIT).text


def test_what_is_a_little_beyond_is_refused_without_a_warning_of_others(
    open_system: OpenSystem, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    alice = open_system("default", store=False).spawn("alice")

    with pytest.raises(ContextExceeded):
        alice.ask("word " * 40_000).get(timeout=WAIT)

    assert "sequence length" not in capfd.readouterr().err + caplog.text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_after_a_restart_it_knows_what_it_was_told_and_nothing_else(
    open_system: OpenSystem, tmp_path: Path, dtype: str
) -> None:
    first = open_system("default", dtype=dtype)
    for turn in TOLD:
        first.spawn("bob").tell(turn)
    first.stop()

    bob = open_system("default", dtype=dtype).spawn("bob")
    replies = {question: bob.ask(question).get(timeout=WAIT) for question in ASKED}

    assert next(iter(replies.values())).cache == "warm"
    right = sum(replies[question].text == answer for question, answer in ASKED.items())
    assert right >= len(ASKED) - 1
