"""A chat template that is told more for one turn, as it is asked, than it always is."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from call_forms import HYBRID, channels, hybrid, tokenizer_with
from small_tokenizers import chat_format

from kvactors.actors import AgentSystem, Sampling
from kvactors.actors.testing import PuppetModel, use_puppet
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.prefix_match import Draft, continue_behind, match_messages
from kvactors.core.conversation.transcript import Transcript
from kvactors.core.errors import TemplateError

ASKS = "<|im_start|>assistant\n"
NO_THOUGHT = "<think>\n\n</think>\n\n"
WAIT = 60
HIGH = {"reasoning_effort": "high"}
NEXT = "<|start|>assistant"
ANALYSIS = "<|channel|>analysis<|message|>"
PREAMBLE = "<|channel|>commentary<|message|>"
CALL = "<|channel|>commentary to=functions.read <|constrain|>json<|message|>"


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
    assert chat.told({"enable_thinking": False}).begun_by == ""
    assert chat.following("user", "q", answer=True).endswith(ASKS)


def test_what_is_always_told_stays_unless_the_turn_says_otherwise() -> None:
    always = ChatFormat(hybrid(), {"enable_thinking": False, "mood": "calm"})

    assert always.told({"mood": "calm"}).asks == f"{ASKS}{NO_THOUGHT}(calm) "
    assert always.told({"enable_thinking": True}).asks == f"{ASKS}(calm) "


def test_one_that_reads_nothing_of_it_is_the_same(chat: ChatFormat) -> None:
    assert chat.told(None) is chat.told({}) is chat.told({"enable_thinkng": False}) is chat
    plain = chat_format("bytes")
    assert plain.told({"enable_thinking": False}) is plain


def test_a_word_of_the_template_is_no_variable_for_that() -> None:
    template = (
        "{% set mood = 'calm' %}{% for m in messages %}{{ m.thinking }}{{ m.content }}{{ effort }}"
        "<|e|>{% endfor %}"
    )
    chat = ChatFormat(tokenizer_with(template, ["<|e|>"], ["<|e|>"]))

    assert [chat.reads(n) for n in ("thinking", "mood", "m", "effort")] == [False] * 3 + [True]
    # Of one with marks that Jinja alone does not know any word may be.
    chat.tokenizer.chat_template += "{% generation %}{% endgeneration %}"
    assert ChatFormat(chat.tokenizer).reads("thinking")


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


def test_what_the_template_refuses_is_refused(chat: ChatFormat) -> None:
    with pytest.raises(TemplateError, match="mood"):
        chat.told({"mood": "wild"})


def test_a_beginning_of_its_own_shows() -> None:
    chat = ChatFormat(channels())

    assert "Reasoning: high" in chat.told(HIGH).opening("user", "q", system=None, answer=True)
    assert chat.told({**HIGH, "enable_thinking": True}).begun_by == '{"reasoning_effort": "high"}'
    assert chat.told({"reasoning_effort": "medium"}).begun_by == chat.told({}).begun_by == ""


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("So.", "So."),
        ("  So.\n", "  So.\n"),
        ("<think>Hm.</think>\n\nSo.", "So."),
        ("<think>Hm.</think>So. <think>Or?</think> No.", "No."),
        ("<think>Hm", ""),
        ("So. <think>Hm", "So. "),
    ],
)
def test_what_is_said_is_no_thought(chat: ChatFormat, text: str, words: str) -> None:
    assert chat.words(text) == words


def test_where_the_template_begins_to_think_words_begin_behind_the_thought() -> None:
    chat = ChatFormat(opening_thought())

    assert chat.opens_thought
    assert chat.words("Hm.\n</think>\n\nSo.") == "So."
    assert chat.words("Hm.") == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{ANALYSIS}Hm.<|end|>{NEXT}<|channel|>final<|message|>So.", "So."),
        (f"{PREAMBLE}I look.<|end|>{NEXT}{CALL}{{}}<|call|>", "I look."),
        (f"{PREAMBLE}One.<|end|>{NEXT}<|channel|>final<|message|>Two.<|return|>", "One.\n\nTwo."),
        (f"{ANALYSIS}Hm", ""),
        ("no header", "no header"),
        ("<|channel|>fi", ""),
        ("<|chan", ""),
    ],
)
def test_what_is_said_has_no_headers(text: str, words: str) -> None:
    assert ChatFormat(channels()).words(text) == words


def opening_thought() -> Any:
    template = f"{HYBRID}{{% if add_generation_prompt %}}<think>\n{{% endif %}}"
    marks = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    return tokenizer_with(template, marks, ["<|im_end|>"])


@pytest.mark.parametrize("choices", [(), ("yes", "no")])
def test_a_reply_has_the_answer_apart_and_has_it_when_it_is_asked_again(
    choices: tuple[str, ...],
) -> None:
    puppet = PuppetModel(["Hm.\n</think>\n\nSo."], tokenizer=opening_thought)
    system = AgentSystem(puppet, store=False)
    use_puppet(system, puppet)
    with system:
        agent = system.spawn("a")
        first, again = (
            agent.ask("Is it?", sampling=Sampling(choices=choices), request_id="one").get(
                timeout=WAIT
            )
            for _ in range(2)
        )

    # What has a form has no thought.
    assert first.answer == (first.text if choices else "So.")
    assert (again.answer, again.text, again.recorded) == (first.answer, first.text, True)


def test_a_template_is_no_variable_of_itself_whoever_says_so() -> None:
    class Program:
        """A tokenizer whose template shows no text, as some of mlx-lm's."""

        chat_template = None
        has_chat_template = True

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

    inner = hybrid()
    chat = ChatFormat(Program())

    assert chat.reads("mood")
    assert not chat.reads("chat_template")
    assert chat.told({"chat_template": "{{ 1 }}", "tokenize": True}) is chat
