"""Prefix matching is immune to how a tokenizer splits text: four tokenizers, random cuts."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from small_tokenizers import (
    ALGORITHMS,
    LETTERS,
    build,
    chat_format,
    knows,
    raw_turn,
    remembering,
    talk,
)

from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.hashing import common_prefix
from kvactors.core.conversation.prefix_match import Draft, match_messages, match_text
from kvactors.core.conversation.token_offsets import token_ends
from kvactors.core.conversation.transcript import Transcript
from kvactors.core.errors import InvalidInput
from kvactors.core.testing.models import PlainTokenizer

WORDS = ("Hello", "world", "abc,", "be", "a", "decade", "calm!")
texts = st.text(st.sampled_from(LETTERS), min_size=1, max_size=40) | st.lists(
    st.sampled_from(WORDS), min_size=1, max_size=12
).map(" ".join)
every_tokenizer = pytest.mark.parametrize("algorithm", ALGORITHMS)
every_template = pytest.mark.parametrize("template", ["chatml", "default system", "drops thinking"])
quick = settings(max_examples=60)


def text_of(transcript: Transcript, draft: Draft) -> str:
    return "".join(t.rendered for t in [*transcript.turns[: draft.keep], *draft.turns])


def decoded(transcript: Transcript, draft: Draft) -> str:
    """What the model reads."""
    turns = [*transcript.turns[: draft.keep], *draft.turns]
    return transcript.chat.decode([token for turn in turns for token in turn.token_ids])


def true_ends(algorithm: str, text: str) -> list[int]:
    """Where each token ends, as the tokenizer itself says when it splits the text."""
    encoding = build(algorithm).encode(text, add_special_tokens=False)
    if algorithm != "bytes":
        ends = [end for _, end in encoding.offsets]
        # A marker put in front of a text is given the place of the letter behind it.
        for i in range(len(ends) - 2, -1, -1):
            if encoding.offsets[i + 1][0] < ends[i]:
                ends[i] = ends[i + 1]
        return ends
    # Offsets do not tell whether the bytes of a character are complete; decoding does.
    decode = chat_format(algorithm).decode
    shown = [decode(encoding.ids[: i + 1]) for i in range(len(encoding.ids))]
    whole = [len(part) if text.startswith(part) else None for part in shown]
    return [next(end for end in whole[i:] if end is not None) for i in range(len(whole))]


def assert_kept(algorithm: str, text: str, tokens: int, common: int) -> None:
    """Of a text's tokens, those are kept whose characters match, and no other."""
    ends = true_ends(algorithm, text)
    assert all(end <= common for end in ends[:tokens])
    if knows(chat_format(algorithm), text):
        reached = max(ends[:tokens], default=0)
        possible = max((end for end in ends if end <= common), default=0)
        # A token of nothing but white space may wait for the one after it.
        assert not text[reached:possible].strip()


@given(st.text("ab", max_size=8), st.text("ab", max_size=8))
def test_the_common_prefix_is_the_longest(first: str, second: str) -> None:
    common = common_prefix(first, second)

    assert first[:common] == second[:common]
    assert first[common : common + 1] != second[common : common + 1] or common == len(first)
    assert common_prefix(list(first), list(second)) == common


# -- where tokens end ----------------------------------------------------------------------


@every_tokenizer
@quick
@given(text=texts, common=st.integers(0, 60))
def test_a_token_ends_where_the_tokenizer_says(algorithm: str, text: str, common: int) -> None:
    chat = chat_format(algorithm)

    ends = token_ends(chat.decode, chat.encode(text), text)

    assert ends == sorted(ends)
    assert_kept(algorithm, text, sum(end <= common for end in ends), common)


def test_an_unknown_token_and_what_follows_it_end_with_the_text() -> None:
    chat = chat_format("wordpiece")

    ends = token_ends(chat.decode, chat.encode("Hello Ω world"), "Hello Ω world")

    assert ends == [5, 13, 13]


def test_bytes_that_never_become_a_character_end_with_the_text() -> None:
    ends = token_ends(lambda ids: bytes(ids).decode(errors="replace"), [97, 0xF0, 0x9F], "a\ufffd")

    assert ends == [1, 2, 2]


# -- one text ------------------------------------------------------------------------------


@every_tokenizer
@quick
@given(text=texts, cut=st.integers(0, 40), other=texts)
def test_an_edited_text_keeps_the_tokens_whose_characters_match(
    algorithm: str, text: str, cut: int, other: str
) -> None:
    chat = chat_format(algorithm)
    assume(chat.encode(text))
    transcript = remembering(chat, raw_turn(chat, text))
    prompt = text[:cut] + other
    assume(not prompt.startswith(text))

    draft = match_text(transcript, prompt, threshold=0)

    assert (draft.match, draft.keep) == ("diverge", 0)
    assert text_of(transcript, draft) == prompt
    if algorithm == "bytes":
        assert decoded(transcript, draft) == prompt
    first = draft.turns[0]
    cut_off = text.startswith(first.rendered) and first.token_ids == tuple(
        transcript.token_ids[: len(first.token_ids)]
    )
    tokens = len(first.token_ids) if cut_off else 0
    assert_kept(algorithm, text, tokens, common_prefix(text, prompt))


@every_tokenizer
@quick
@given(said=st.lists(texts, min_size=1, max_size=4), more=texts)
def test_a_longer_text_keeps_every_token_and_adds_only_its_own(
    algorithm: str, said: list[str], more: str
) -> None:
    chat = chat_format(algorithm)
    transcript = remembering(chat, *(raw_turn(chat, text) for text in said))

    draft = match_text(transcript, "".join(said) + more)

    assert (draft.match, draft.keep) == ("extend", len(said))
    assert [turn.text for turn in draft.turns] == [more]
    assert list(draft.turns[0].token_ids) == chat.encode_rest(more)


@every_tokenizer
@quick
@given(data=st.data(), cut=st.integers(0, 40))
def test_an_answer_of_any_tokens_is_recognized_by_its_text(
    algorithm: str, data: st.DataObject, cut: int
) -> None:
    chat = chat_format(algorithm)
    ids = data.draw(st.lists(st.integers(3, len(build(algorithm).get_vocab()) - 1), max_size=12))
    transcript = remembering(chat, raw_turn(chat, "Hello"))
    answer = transcript.answer([*ids, *chat.end_of_turn], "stop", raw=True)
    transcript.extend([answer])

    whole = match_text(transcript, "Hello" + answer.text + " more")
    part = match_text(transcript, "Hello" + answer.text[:cut], threshold=0)

    assert (whole.match, whole.keep) == ("extend", 2)
    kept = part.turns[0].token_ids if part.turns else ()
    if part.match == "diverge" and kept == tuple(ids[: len(kept)]):
        shown = chat.decode(kept)
        assert answer.text[:cut].startswith(shown) or "\ufffd" in answer.text


def test_an_answers_end_may_be_left_out_or_sent() -> None:
    chat = chat_format("bytes")
    transcript = remembering(chat, raw_turn(chat, "Hello"))
    ids = (*chat.encode(" world"), *chat.end_of_turn)
    transcript.extend([transcript.answer(ids, "stop", raw=True)])

    drafts = [match_text(transcript, f"Hello world{end} abc") for end in ("", "<|end|>")]

    assert [(draft.match, draft.keep) for draft in drafts] == [("extend", 2)] * 2
    assert [draft.turns[0].text for draft in drafts] == [" abc"] * 2


@pytest.mark.parametrize(
    ("prompt", "match", "kept", "appended"),
    [
        ("abcdefghij", "exact", 10, ""),
        ("abcdefghijk", "extend", 10, "k"),
        ("abcdefghiX", "diverge", 9, "X"),
        ("abcdefgh", "diverge", 8, ""),
        ("abcdefgX", "diverge", 0, "abcdefgX"),
        ("abc", "diverge", 0, "abc"),
    ],
)
def test_less_than_the_threshold_starts_again(
    prompt: str, match: str, kept: int, appended: str
) -> None:
    chat = ChatFormat(PlainTokenizer())
    transcript = remembering(chat, raw_turn(chat, "abcdefghij"))

    draft = match_text(transcript, prompt)

    assert draft.match == match
    assert text_of(transcript, draft) == prompt
    assert sum(len(turn.rendered) for turn in draft.turns[-1:] if appended) == len(appended)
    assert len(prompt) - len(appended) == kept


def test_the_threshold_is_a_parameter() -> None:
    chat = ChatFormat(PlainTokenizer())
    transcript = remembering(chat, raw_turn(chat, "abcdefghij"))

    drafts = [match_text(transcript, "abcXY", threshold) for threshold in (0.3, 0.31)]

    assert [[turn.text for turn in draft.turns] for draft in drafts] == [["abc", "XY"], ["abcXY"]]


@pytest.mark.parametrize("algorithm", ["default", "bytes", "unigram"])
def test_an_edit_inside_a_word_adds_no_space(algorithm: str) -> None:
    chat = chat_format(algorithm)
    transcript = remembering(chat, raw_turn(chat, "Hello, be calm now"))

    draft = match_text(transcript, "Hello, be called now", threshold=0)

    assert decoded(transcript, draft) == "Hello, be called now"
    assert len(draft.turns) == 2


def test_composed_and_combining_letters_are_different_characters() -> None:
    chat = chat_format("bytes")
    transcript = remembering(chat, raw_turn(chat, "caf\u00e9"))

    draft = match_text(transcript, "cafe\u0301", threshold=0)

    assert text_of(transcript, draft) == "cafe\u0301"
    assert draft.turns[0].rendered == "caf"


# -- messages ------------------------------------------------------------------------------


Q1, A1, Q2, A2, Q3 = "Hello world", "<think>be calm</think>a cab", "abc, be", "decade", "a bed"


def heard(transcript: Transcript, system: str | None = None) -> list[tuple[str, str]]:
    """The conversation as its client knows it."""
    said = [(turn.role, turn.text) for turn in transcript.turns]
    return [("system", system), *said] if system is not None else said


@every_tokenizer
@every_template
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_the_same_messages_answer_the_last_question_again(
    algorithm: str, template: str, system: str | None
) -> None:
    transcript = talk(chat_format(algorithm, template), Q1, A1, Q2, A2, system=system)

    draft = match_messages(transcript, heard(transcript, system))

    assert (draft.match, draft.keep, draft.turns) == ("exact", 3, ())


@every_tokenizer
@every_template
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_one_more_message_adds_what_asking_it_adds(
    algorithm: str, template: str, system: str | None
) -> None:
    transcript = talk(chat_format(algorithm, template), Q1, A1, Q2, A2, system=system)

    draft = match_messages(transcript, [*heard(transcript, system), ("user", Q3)])

    assert (draft.match, draft.keep) == ("extend", 4)
    assert draft.turns == (transcript.render("user", Q3, answer=True),)


@every_tokenizer
@every_template
@quick
@given(
    said=st.lists(texts, min_size=2, max_size=6),
    place=st.integers(0, 5),
    cut=st.integers(0, 40),
    other=texts,
)
def test_edited_messages_keep_what_matches_and_become_what_was_asked(
    algorithm: str, template: str, said: list[str], place: int, cut: int, other: str
) -> None:
    chat = chat_format(algorithm, template)
    transcript = talk(chat, *said)
    place = min(place, len(said) - 1)
    role, text = heard(transcript)[place]
    changed = text[:cut] + other
    assume(changed != text)
    question = [("user", Q3)] if role == "assistant" else []

    draft = match_messages(
        transcript, [*heard(transcript)[:place], (role, changed), *question], threshold=0
    )

    assert draft.keep == place
    assert [(turn.role, turn.text) for turn in draft.turns] == [(role, changed), *question]
    old, new = transcript.turns[place], draft.turns[0]
    shown = changed if role == "assistant" else new.rendered
    assert shown in new.rendered
    common = common_prefix(old.rendered, shown)
    ends = token_ends(chat.decode, old.token_ids, old.rendered)
    whole = sum(end <= common for end in ends)
    assert new.token_ids[:whole] == old.token_ids[:whole]
    if algorithm == "bytes":
        assert decoded(transcript, draft) == text_of(transcript, draft)
    if role == "user" and knows(chat, old.rendered):
        assert_kept(algorithm, old.rendered, whole, common)


def test_what_an_edited_conversation_renders_is_what_talking_renders() -> None:
    chat = chat_format("bytes", "default system")
    transcript = talk(chat, Q1, A1, Q2, A2)
    edited = talk(chat, Q1, "a cab", Q3)

    draft = match_messages(transcript, heard(edited), threshold=0)

    assert text_of(transcript, draft) == text_of(edited, Draft(3, ()))


def test_a_conversation_of_its_own_is_rendered_like_one_that_was_held() -> None:
    chat = chat_format("bytes", "chatml")
    held = talk(chat, Q1, A1, Q2, system="Be brief.")

    draft = match_messages(Transcript(chat, "test"), heard(held, "Be brief."))

    assert (draft.match, draft.system_prompt) == ("extend", "Be brief.")
    assert draft.turns == tuple(held.turns)


@pytest.mark.parametrize(("threshold", "keep"), [(0.4, 3), (0.8, 0)])
def test_a_conversation_that_ends_early_is_answered_where_it_ends(
    threshold: float, keep: int
) -> None:
    transcript = talk(chat_format("bytes", "chatml"), Q1, A1, Q2, "abc " * 20)

    draft = match_messages(transcript, heard(transcript)[:3], threshold)

    assert (draft.match, draft.keep) == ("diverge", keep)
    assert text_of(transcript, draft) == text_of(transcript, Draft(3, ()))


def test_a_question_whose_answer_is_gone_no_longer_asks_for_one() -> None:
    chat = chat_format("bytes", "chatml")
    transcript = talk(chat, Q1, A1)

    draft = match_messages(transcript, [("user", Q1), ("user", Q2)], threshold=0)

    assert text_of(transcript, draft) == (
        f"<|start|>user\n{Q1}<|end|>\n<|start|>user\n{Q2}<|end|>\n<|start|>assistant\n"
    )
    assert (
        draft.turns[0].token_ids == transcript.turns[0].token_ids[: len(draft.turns[0].token_ids)]
    )


def test_something_observed_is_matched_and_then_answered() -> None:
    transcript = talk(chat_format("bytes", "chatml"), Q1, A1)
    transcript.extend([transcript.render("user", Q2, answer=False)])

    again = match_messages(transcript, heard(transcript))
    more = match_messages(transcript, [*heard(transcript), ("user", Q3)])

    assert (again.match, again.keep) == ("extend", 2)
    assert again.turns[0].rendered == transcript.turns[2].rendered + "<|start|>assistant\n"
    known = transcript.turns[2].token_ids
    assert again.turns[0].token_ids[: len(known)] == known
    assert (more.match, more.keep, len(more.turns)) == ("extend", 3, 1)


def test_another_system_prompt_starts_again_with_it() -> None:
    transcript = talk(chat_format("bytes", "chatml"), Q1, A1, system="Be brief.")

    draft = match_messages(transcript, [*heard(transcript, "Be kind."), ("user", Q2)])

    assert (draft.match, draft.keep, draft.system_prompt) == ("diverge", 0, "Be kind.")
    assert draft.turns[0].rendered.startswith("<|start|>system\nBe kind.<|end|>")
    assert transcript.system_prompt == "Be brief."


def test_an_answer_without_its_thinking_diverges_inside_that_answer() -> None:
    transcript = talk(chat_format("bytes", "drops thinking"), Q1, A1)
    answer = A1.split("</think>")[1]

    draft = match_messages(
        transcript, [("user", Q1), ("assistant", answer), ("user", Q2)], threshold=0
    )

    assert (draft.match, draft.keep) == ("diverge", 1)
    assert [turn.text for turn in draft.turns] == [answer, Q2]


@pytest.mark.parametrize("said", [[("system", "Be kind.")], [("user", Q1), ("assistant", "other")]])
def test_messages_that_leave_nothing_to_answer_are_refused(said: list[tuple[str, str]]) -> None:
    with pytest.raises(InvalidInput, match=r"nothing to answer|end with the message to answer"):
        match_messages(talk(chat_format("bytes", "chatml"), Q1, A1), said)
