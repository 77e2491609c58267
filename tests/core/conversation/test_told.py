"""A chat template that is told more for one turn, as it is asked, than it always is."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from call_forms import channels, hybrid
from small_tokenizers import chat_format

from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.prefix_match import Draft, continue_behind, match_messages
from kvactors.core.conversation.transcript import Transcript
from kvactors.core.errors import TemplateError

ASKS = "<|im_start|>assistant\n"
NO_THOUGHT = "<think>\n\n</think>\n\n"


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(hybrid())


def test_what_is_told_counts_for_what_is_asked_and_for_nothing_before(chat: ChatFormat) -> None:
    told = chat.told({"enable_thinking": False})

    for asked in (
        told.opening("user", "q", system="Be kind.", answer=True),
        told.following("user", "q", answer=True),
    ):
        assert asked.endswith(f"<|im_start|>user\nq<|im_end|>\n{ASKS}{NO_THOUGHT}")
    assert told.opening("user", "q", system=None, answer=False).endswith("<|im_end|>\n")
    assert told.head == chat.head
    assert chat.following("user", "q", answer=True).endswith(ASKS)


def test_what_is_always_told_stays_unless_the_turn_says_otherwise() -> None:
    always = ChatFormat(hybrid(), {"enable_thinking": False, "mood": "calm"})

    assert always.told({"mood": "calm"}).asks == f"{ASKS}{NO_THOUGHT}(calm) "
    assert always.told({"enable_thinking": True}).asks == f"{ASKS}(calm) "


def test_one_that_reads_nothing_of_it_is_the_same(chat: ChatFormat) -> None:
    assert chat.told(None) is chat.told({}) is chat.told({"enable_thinkng": False}) is chat
    plain = chat_format("bytes")
    assert plain.told({"enable_thinking": False}) is plain


def test_one_that_is_told_the_same_is_made_once(chat: ChatFormat) -> None:
    told = chat.told({"enable_thinking": False, "mood": "calm"})

    assert chat.told({"mood": "calm", "enable_thinking": False}) is told
    assert chat.told({"enable_thinking": False}) is not told
    assert told.grammar_tokens(300) is chat.grammar_tokens(300)


def test_ways_to_be_told_are_not_kept_without_end(chat: ChatFormat) -> None:
    first = chat.told({"enable_thinking": 0.5})
    for number in range(100):
        chat.told({"enable_thinking": number + 1})

    assert chat.told({"enable_thinking": 0.5}) is not first
    long = {"enable_thinking": "x" * 10_000}
    assert chat.told(long) is not chat.told(long)


def test_what_the_template_refuses_is_refused(chat: ChatFormat) -> None:
    with pytest.raises(TemplateError, match="mood"):
        chat.told({"mood": "wild"})


def test_a_beginning_of_its_own_shows() -> None:
    chat = ChatFormat(channels())

    assert "Reasoning: high" in chat.told({"reasoning_effort": "high"}).head
    assert chat.told({"reasoning_effort": "medium"}).head == chat.head


def test_only_one_thread_at_a_time_is_in_a_tokenizer_however_it_is_told() -> None:
    inner, most = hybrid(), [0]
    inside = list[int]()
    meet = threading.Barrier(2, timeout=0.2)

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

        def apply_chat_template(self, *args: Any, **options: Any) -> Any:
            inside.append(1)
            most[0] = max(most[0], len(inside))
            if threading.current_thread() is not threading.main_thread():
                with suppress(threading.BrokenBarrierError):
                    meet.wait()
            inside.pop()
            return inner.apply_chat_template(*args, **options)

    chat = ChatFormat(Watched())
    told = chat.told({"enable_thinking": False})
    threads = [
        threading.Thread(target=lambda c=each: c.following("user", "q", answer=True))
        for each in (chat, told)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == [1]


Matches = Callable[[Transcript], Draft]
ANSWERED = [("user", "q"), ("assistant", "a")]


@pytest.mark.parametrize(
    "match",
    [
        lambda transcript: continue_behind(transcript, 1, [], None),
        lambda transcript: match_messages(transcript, [("user", "q")]),
        lambda transcript: match_messages(transcript, ANSWERED),
    ],
    ids=["kept", "asked", "answered"],
)
def test_an_answer_that_is_given_again_is_asked_for_as_it_is_now(
    chat: ChatFormat, match: Matches
) -> None:
    transcript = Transcript(chat, "t")
    asked = transcript.render("user", "q", answer=True)
    transcript.extend([asked, transcript.answer(chat.encode("a<|im_end|>"), "stop")])
    assert (match(transcript).keep, match(transcript).turns) == (1, ())

    transcript.chat = chat.told({"enable_thinking": False})
    draft = match(transcript)

    tokens = [t for turn in (*transcript.turns[: draft.keep], *draft.turns) for t in turn.token_ids]
    assert chat.decode(tokens) == f"<|im_start|>user\nq<|im_end|>\n{ASKS}{NO_THOUGHT}"
