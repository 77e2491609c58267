"""The model that ships in the package does its one thing, through a restart."""

from pathlib import Path

import pytest
from makers import OpenSystem

from kvactors.core.model.options import DEFAULT_MODEL

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


def test_the_readmes_example_is_answered_to_the_letter(open_system: OpenSystem) -> None:
    alice = open_system("default").spawn("alice", system_prompt="You answer from memory.")
    alice.ask("My cat is called Biscuit.").get(timeout=WAIT)

    assert (
        alice.ask("What is my cat called?").get(timeout=WAIT).text == "Your cat is called Biscuit."
    )
    assert alice.ask("What is my dog called?").get(timeout=WAIT).text == "I do not know."


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
