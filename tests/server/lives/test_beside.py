"""What takes the longer the more was said: it is done beside the loop, which all streams share."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from puppets import Messages, puppet_server, thinking
from seeded import Bug, seeded

from kvactors.actors.frontends.server.answering import taken
from kvactors.actors.frontends.server.answering.taken import marks_of
from kvactors.actors.testing import PuppetModel
from kvactors.core.conversation.token_text import TokenText
from kvactors.core.conversation.turn import Turn

LOOP = "kvactors-server"
THOUGHT = "Is it?"


def noted(owner: Any, name: str, what: Callable[[Any], bool], threads: set[str]) -> Bug:
    """Notes on which `threads` the part of this `owner` and `name` is called with `what`."""

    def wrong(true: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any) -> Any:
            if any(map(what, given)):
                threads.add(threading.current_thread().name)
            return true(*given)

        return called

    return Bug(f"{name} is noted", owner, name, wrong)


@pytest.mark.parametrize(
    ("owner", "name", "what"),
    [
        (TokenText, "encode_rest", lambda text: text == THOUGHT),
        (taken, "marks_of", lambda turns: isinstance(turns, tuple)),
    ],
)
def test_thoughts_are_counted_and_transcripts_hashed_beside_the_streams(
    owner: Any, name: str, what: Callable[[Any], bool]
) -> None:
    threads = set[str]()
    puppet = PuppetModel([f"<think>{THOUGHT}</think>It is."], tokenizer=thinking)
    with puppet_server(puppet) as server, seeded(noted(owner, name, what, threads)):
        Messages(stream=False)(server, [{"role": "user", "content": "Say it."}])

    assert threads
    assert LOOP not in threads


def test_a_transcript_has_marks_of_its_new_turns_alone() -> None:
    turns = [Turn("user", text, (number,), text) for number, text in enumerate("abcde")]

    marks = marks_of(turns, 0)

    assert len(set(marks)) == 5
    assert marks_of(turns, 3) == marks[3:]
    assert marks_of(turns[:2], 2) == []
