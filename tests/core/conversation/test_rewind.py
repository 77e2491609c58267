"""Taking back what is remembered: the transcript, and the ledger that only ever appends."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from call_forms import channels, hybrid, tokenizer_with
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import chat_format, raw_turn, recorded, remembering, talk

from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.rewind import cut_at_token, cut_turns
from kvactors.core.conversation.transcript import Transcript
from kvactors.core.errors import RewindOutOfRange

# -- where a rewind cuts -------------------------------------------------------------------


@pytest.mark.parametrize(("count", "keep"), [(1, 4), (2, 3), (3, 2), (4, 0)])
def test_a_turn_is_a_prompt_with_its_answer_or_something_observed(count: int, keep: int) -> None:
    transcript = talk(chat_format("bytes", "chatml"), "Hello", "a", "be")
    observed = transcript.render("user", "abc", answer=False)
    asked = talk(chat_format("bytes", "chatml"), "world", "calm").turns
    transcript.turns = [*transcript.turns[:2], *transcript.turns[2:], observed, *asked]

    assert cut_turns(transcript.turns, count) == keep


def test_more_turns_than_there_are_cannot_be_rewound() -> None:
    transcript = talk(chat_format("bytes", "chatml"), "Hello", "a")

    with pytest.raises(RewindOutOfRange, match="cannot rewind 2 turns: the agent remembers 1"):
        cut_turns(transcript.turns, 2)


def test_a_token_beyond_the_last_cannot_be_rewound_to() -> None:
    transcript = talk(chat_format("bytes"), "Hello", "a")
    tokens = len(transcript.token_ids)

    assert cut_at_token(transcript, tokens) == (2, ())
    with pytest.raises(RewindOutOfRange, match=f"the agent remembers {tokens}"):
        cut_at_token(transcript, tokens + 1)


def test_a_cut_turn_keeps_the_part_of_its_text_that_its_tokens_stand_for() -> None:
    chat = chat_format("bytes", "chatml")
    transcript = talk(chat, "abc 🚀 be", "decade🚀")
    answer_from = len(transcript.turns[0].token_ids)
    before = chat.encode("decade")

    (question,) = cut_at_token(transcript, len(chat.encode("<|start|>user\nabc")))[1]
    keep, (answer,) = cut_at_token(transcript, answer_from + len(before) + 1)

    assert (question.text, question.rendered) == ("abc", "<|start|>user\nabc")
    assert (keep, answer.text, answer.finish) == (1, "decade", "cut")
    assert len(answer.token_ids) == len(before) + 1


@pytest.mark.parametrize("template", ["none", "chatml", "default system"])
def test_a_question_that_only_lost_what_follows_it_keeps_its_text(template: str) -> None:
    chat = chat_format("bytes", template)
    transcript = talk(chat, "a", "be", "a", system="a cab")
    tail = len(chat.encode("<|end|>\n<|start|>assistant\n")) if template != "none" else 0

    cut = [transcript.cut(turn, len(turn.token_ids) - tail) for turn in transcript.turns[::2]]

    assert [turn.text for turn in cut] == ["a", "a"]


@pytest.mark.parametrize("kept_tokens", range(1, 25))
def test_wherever_it_is_cut_the_next_question_is_well_formed(kept_tokens: int) -> None:
    chat = chat_format("bytes", "chatml")
    transcript = talk(chat, "Hello", "a cab")
    keep, remains = cut_at_token(transcript, min(kept_tokens, len(transcript.token_ids)))
    transcript.extend(remains, keep)

    text = "".join(turn.rendered for turn in transcript.turns)
    text += transcript.render("user", "be", answer=True).rendered

    marks = [part.split("\n")[0] for part in text.split("<|start|>")[1:]]
    assert all(part.rstrip("\n").endswith("<|end|>") for part in text.split("<|start|>")[1:-1])
    assert marks[-2:] == ["user", "assistant"]


@pytest.mark.parametrize("first", range(1, 25))
def test_wherever_it_is_cut_again_the_next_question_is_well_formed(first: int) -> None:
    chat = chat_format("bytes", "chatml")
    for second in range(1, 30):
        transcript = talk(chat, "Hello", "a cab")
        keep, remains = cut_at_token(transcript, min(first, len(transcript.token_ids)))
        transcript.extend(remains, keep)
        question = transcript.render("user", "be", answer=True)
        transcript.extend([question, transcript.answer(chat.encode("decade"), "length")])
        keep, remains = cut_at_token(transcript, min(second, len(transcript.token_ids)))
        transcript.extend(remains, keep)

        text = "".join(turn.rendered for turn in transcript.turns)
        text += transcript.render("user", "abc", answer=True).rendered

        parts = text.split("<|start|>")[1:]
        assert all(part.rstrip("\n").endswith("<|end|>") for part in parts[:-1]), (first, second)


def test_any_number_of_turns_that_another_template_rendered_may_come_before() -> None:
    chat = chat_format("bytes", "chatml")
    transcript = talk(chat, "Hello", "a cab")
    observed = transcript.render("user", "abc", answer=False)
    foreign = replace(observed, rendered=f"[{observed.rendered}]")
    transcript.turns = [*transcript.turns, *[foreign] * 2000]

    assert transcript.render("user", "be", answer=True).rendered.startswith("<|start|>user")


# -- the ledger ----------------------------------------------------------------------------


@settings(max_examples=60)
@given(data=st.data())
def test_replaying_the_ledger_gives_the_transcript(data: st.DataObject) -> None:
    chat = chat_format("bytes", "chatml")
    transcript, records = Transcript(chat, "test", "Be brief."), []
    for _ in range(data.draw(st.integers(1, 8))):
        known = len(transcript.token_ids)
        if data.draw(st.booleans()):
            question = transcript.render(
                "user", data.draw(st.text("ab 🦊", max_size=5)), answer=True
            )
            answer = transcript.answer(chat.encode("decade 🦊"), "length")
            records.append(transcript.extend([question, answer]))
        else:
            keep, remains = cut_at_token(transcript, data.draw(st.integers(0, known)))
            records.append(transcript.extend(remains, keep))

    replayed = Transcript.restore(chat, "test", recorded(records))

    assert replayed.turns == transcript.turns
    assert replayed.system_prompt == "Be brief."


def test_nothing_is_taken_out_of_the_ledger() -> None:
    chat = chat_format("bytes", "chatml")
    transcript = talk(chat, "Hello", "a")
    record = transcript.extend([raw_turn(chat, "be")], keep=1)

    assert record["keep"] == 1
    assert [entry["text"] for entry in record["turns"]] == ["be"]
    assert "keep" not in transcript.extend([raw_turn(chat, "calm")])


def test_records_of_version_1_are_read() -> None:
    chat = chat_format("bytes", "chatml")
    transcript = talk(chat, "Hello", "a cab")
    record = Transcript(chat, "test").extend(transcript.turns)
    entries = [{k: v for k, v in entry.items() if k != "around"} for entry in record["turns"]]

    restored = Transcript.restore(chat, "test", [{**record, "version": 1, "turns": entries}])

    assert restored.turns == transcript.turns


def test_another_tokenizer_replays_a_rewind_by_turns() -> None:
    chat = chat_format("bytes", "chatml")
    transcript, records = Transcript(chat, "test"), []
    for said in ("Hello", "world", "abc"):
        question = transcript.render("user", said, answer=True)
        records.append(transcript.extend([question, transcript.given_answer("be")]))
    records.append(transcript.extend([], keep=2))

    other = Transcript.restore(chat_format("unigram", "chatml"), "other", recorded(records))

    assert [turn.text for turn in other.turns] == ["Hello", "be"]


@pytest.mark.parametrize("keep", [3, -1])
def test_a_record_that_keeps_more_than_there_is_is_refused(keep: int) -> None:
    chat = chat_format("bytes")
    record = remembering(chat).extend([raw_turn(chat, "Hello")])

    with pytest.raises(ValueError, match=f"keeps {keep} turns of 0"):
        Transcript.restore(chat, "test", [{**record, "keep": keep}])


def test_a_newer_record_is_refused() -> None:
    chat = chat_format("bytes")
    record = remembering(chat).extend([raw_turn(chat, "Hello")])

    with pytest.raises(ValueError, match="version 3"):
        Transcript.restore(chat, "test", [{**record, "version": 3}])


@pytest.mark.parametrize("write", ["m.content", "m.content | trim", "m.content | tojson"])
def test_nothing_is_told_again_that_a_cut_turn_lost_however_the_template_writes_it(
    write: str,
) -> None:
    template = (
        f"{{% for m in messages %}}<|s|>{{{{ m.role }}}}\n{{{{ {write} }}}}<|e|>\n{{% endfor %}}"
        "{% if add_generation_prompt %}<|s|>assistant\n{% endif %}"
    )
    chat = ChatFormat(tokenizer_with(template, ["<|s|>", "<|e|>"], ["<|e|>"]))
    text = '\n  say "this",\nnot THAT "there" '
    whole = Transcript(chat, "t").render("user", text, answer=True)
    head, _, rest = whole.rendered.partition("user\n")
    first = len(chat.encode(head + "user\n"))
    last = len(whole.token_ids) - len(chat.encode(rest[rest.index("<|e|>") :]))
    assert last > first + 10

    for tokens in range(first + 1, last + 1):
        transcript = Transcript(chat, "t")
        transcript.extend([whole, transcript.answer(chat.encode("a<|e|>"), "stop")])
        _, cut = cut_at_token(transcript, tokens)
        transcript.extend(cut, 0)
        kept = cut[0].rendered

        told = chat.decode(
            [*transcript.token_ids, *transcript.render("user", "so", answer=True).token_ids]
        )

        lost = told.removeprefix(kept).partition("<|s|>")[0]
        assert lost in ('"<|e|>\n', "<|e|>\n")
        assert text.startswith(cut[0].text)


@pytest.mark.parametrize("told", [None, {"reasoning_effort": "high"}, {"enable_thinking": False}])
@pytest.mark.parametrize("tokenizer", [channels, hybrid])
@pytest.mark.parametrize("again", [False, True])
def test_a_turn_is_cut_as_it_was_asked_whatever_the_template_is_told_now(
    told: dict[str, Any] | None, tokenizer: Callable[[], Any], *, again: bool
) -> None:
    chat = ChatFormat(tokenizer())
    asking = Transcript(chat.told(told), "t")
    whole = asking.render("user", "Number 4711 please", answer=True)

    for tokens in range(1, len(whole.token_ids) + 1):
        transcript = Transcript(chat, "t")
        records = [transcript.extend([whole, transcript.answer(chat.encode("a"), "length")])]
        _, cut = cut_at_token(transcript, tokens)
        records.append(transcript.extend(cut or [whole], 0))
        if again:
            transcript = Transcript.restore(chat, "t", records)

        (turn,) = transcript.turns
        then = chat.decode(transcript.render("user", "so", answer=True).token_ids)

        # Behind the text that is left stands the rest of the whole, and then the end of an answer,
        # or the rest but for what asks for one.
        if turn.text:
            rest = whole.rendered.partition(whole.text)[2]
            said = (turn.rendered + then).partition(turn.text)[2]
            asked = chat.following("user", "so", answer=True)
            closing = chat.closing_after((), answered=True)
            unasked = rest.removesuffix(asking.chat.asks)
            assert said in (rest + closing + asked, unasked + asked)
        assert whole.text.startswith(turn.text)
        assert ("4711" in turn.rendered) == ("4711" in turn.text)
