"""Messages are matched with a conversation however a tokenizer splits their text."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from prefixes import assert_kept, decoded, every_template, every_tokenizer, quick, text_of, texts
from small_tokenizers import (
    chat_format,
    knows,
    talk,
)

from kvactors.core.conversation.hashing import common_prefix
from kvactors.core.conversation.prefix_match import Draft, match_messages
from kvactors.core.conversation.token_offsets import token_ends
from kvactors.core.conversation.transcript import Transcript
from kvactors.core.errors import InvalidInput

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


@every_tokenizer
@pytest.mark.parametrize("template", ["chatml", "marks", "spaced", "broken line"])
def test_a_conversation_of_its_own_has_the_tokens_of_its_whole_rendering(
    algorithm: str, template: str
) -> None:
    chat = chat_format(algorithm, template)
    said = [("user", Q1), ("assistant", "a cab"), ("user", Q2)]

    draft = match_messages(Transcript(chat, "test"), said)

    messages = [{"role": role, "content": text} for role, text in said]
    assert [token for turn in draft.turns for token in turn.token_ids] == (
        chat.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    )


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


@every_tokenizer
@every_template
@quick
@given(said=texts, more=texts, other=texts)
def test_an_answer_that_is_gone_on_with_keeps_its_tokens_but_not_its_end(
    algorithm: str, template: str, said: str, more: str, other: str
) -> None:
    chat = chat_format(algorithm, template)
    transcript = talk(chat, Q1, said)
    tokens = transcript.turns[1].token_ids

    own = match_messages(transcript, [], goes_on=True)
    further, asked = (
        [("user", Q1), ("assistant", said + more)],
        [("user", Q1), ("assistant", other)],
    )
    longer = match_messages(transcript, further, 0.0, goes_on=True)
    alone = match_messages(Transcript(chat, "test"), asked, goes_on=True)

    assert (own.keep, own.turns, own.match) == (1, (), "extend")
    assert own.begun.token_ids == tuple(token for token in tokens if token not in chat.eos)
    assert (longer.keep, longer.turns) == (1, ())
    known = len(own.begun.token_ids)
    if algorithm == "bytes":
        assert longer.begun.token_ids[: known - 1] == own.begun.token_ids[:-1]
    assert not chat.eos.intersection(longer.begun.token_ids)
    assert alone.turns == (Transcript(chat, "test").render("user", Q1, answer=True),)
    assert alone.begun.token_ids == tuple(chat.encode_answer(other))


@every_tokenizer
def test_an_answer_that_a_stop_string_ended_goes_on_before_it(algorithm: str) -> None:
    chat = chat_format(algorithm, "chatml")
    transcript = talk(chat, Q1)
    transcript.extend([transcript.render("user", Q1, answer=True)], 0)
    answer = transcript.answer(chat.encode("decade calm! be"), "stop", stop=("lm",))
    transcript.extend([answer])

    begun = match_messages(transcript, [], goes_on=True).begun

    assert answer.text == chat.decode(begun.token_ids)
    assert begun.token_ids[0] == answer.token_ids[0]


def test_what_a_stop_string_ends_is_looked_for_behind_what_was_begun() -> None:
    chat = chat_format("bytes", "chatml")
    begun, more = chat.encode("abc, be"), chat.encode(" calm, decade")

    turn = Transcript(chat, "test").answer((*begun, *more), "stop", stop=(",",), begun=len(begun))

    assert (turn.text, turn.begun) == ("abc, be calm", len(begun))
