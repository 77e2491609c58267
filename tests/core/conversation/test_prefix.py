"""Prefix matching is immune to how a tokenizer splits text: four tokenizers, random cuts."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from prefixes import assert_kept, decoded, every_tokenizer, quick, text_of, texts
from small_tokenizers import (
    build,
    chat_format,
    knows,
    raw_turn,
    remembering,
    talk,
)

from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.hashing import common_prefix
from kvactors.core.conversation.prefix_match import match_text
from kvactors.core.conversation.token_offsets import token_ends
from kvactors.core.testing.models import PlainTokenizer


@given(st.text("ab", max_size=8), st.text("ab", max_size=8))
def test_the_common_prefix_is_the_longest(first: str, second: str) -> None:
    common = common_prefix(first, second)

    assert first[:common] == second[:common]
    assert first[common : common + 1] != second[common : common + 1] or common == len(first)
    assert common_prefix(list(first), list(second)) == common


class Watched(int):
    """An item that counts how often any such item is compared."""

    compared = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Watched.compared += 1
        return super().__eq__(other)


@pytest.mark.parametrize("common", [0, 1, 511, 512, 513, 1000, 1023, 1024])
def test_what_is_known_to_be_common_is_not_compared_at_each_bisection(common: int) -> None:
    first = [Watched(item) for item in range(1024)]
    second = [Watched(item if item < common else -1) for item in range(1024)]
    Watched.compared = 0

    assert common_prefix(first, second) == common
    assert Watched.compared <= 2 * 1024


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
    # Two words that the tokenizer does not know are the same token, without any being kept.
    cut_off = (
        text.startswith(first.rendered)
        and first.token_ids == tuple(transcript.token_ids[: len(first.token_ids)])
        and knows(chat, first.rendered)
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


@pytest.mark.parametrize("algorithm", ["default", "bytes"])
@pytest.mark.parametrize("rest", ["\nbe calm", "\n\nbe", "\tbe", " be"])
def test_what_follows_adds_no_space(algorithm: str, rest: str) -> None:
    chat = chat_format(algorithm)
    transcript = remembering(chat, raw_turn(chat, "Hello"))

    draft = match_text(transcript, f"Hello{rest}")

    assert decoded(transcript, draft) == f"Hello{rest}"


def test_a_text_that_ends_with_an_earlier_answer_has_it_given_again() -> None:
    chat = chat_format("bytes", "chatml")
    transcript = talk(chat, "Hello, be calm now", "a cab", "abc", "decade")
    first = "".join(turn.rendered.removesuffix(turn.hidden) for turn in transcript.turns[:2])

    draft = match_text(transcript, first, threshold=0)

    assert (draft.keep, draft.turns) == (1, ())


def test_composed_and_combining_letters_are_different_characters() -> None:
    chat = chat_format("bytes")
    transcript = remembering(chat, raw_turn(chat, "caf\u00e9"))

    draft = match_text(transcript, "cafe\u0301", threshold=0)

    assert text_of(transcript, draft) == "cafe\u0301"
    assert draft.turns[0].rendered == "caf"
