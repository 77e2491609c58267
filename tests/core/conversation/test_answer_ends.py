"""How an answer ends where the template writes nothing behind it: the model says what the next turn
begins with, as GLM-4 does."""

from typing import Any

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from small_tokenizers import build, chat_format
from transformers import PreTrainedTokenizerFast

from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.prefix_match import match_messages
from kvactors.core.conversation.rewind import cut_at_token
from kvactors.core.conversation.transcript import Transcript
from kvactors.core.testing.models import PlainTokenizer

# Of its two end tokens, <unk> is said nowhere, and <|start|> begins a user's turn.
UNENDED = (
    "{% for m in messages %}{{ '[A]' if m.role == 'assistant' else '<|start|>user: ' }}"
    "{{ m.content }}{% endfor %}{{ '[A]' if add_generation_prompt else '' }}"
)
SAID = [("user", "abc"), ("assistant", "a cab"), ("user", "be calm")]


def made(template: str) -> ChatFormat:
    fast = PreTrainedTokenizerFast(tokenizer_object=build("bytes"), eos_token="<unk>")
    fast.chat_template = template
    ends = [fast.convert_tokens_to_ids(end) for end in ("<unk>", "<|start|>")]
    return ChatFormat(TokenizerWrapper(fast, eos_token_ids=ends))


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return made(UNENDED)


def held(chat: ChatFormat, end: str) -> Transcript:
    """What was said first, with an answer that ended so."""
    transcript = Transcript(chat, "test")
    question = transcript.render("user", "abc", answer=True)
    answer = transcript.answer(chat.encode(f"a cab{end}"), "stop" if end else "length")
    transcript.extend([question, answer])
    return transcript


def whole(chat: ChatFormat) -> list[int]:
    """The tokens of the conversation, rendered at once."""
    messages = [{"role": role, "content": text} for role, text in SAID]
    tokens: Any = chat.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return list(tokens)


@pytest.mark.parametrize("end", ["<|start|>", ""])
def test_what_the_next_turn_begins_with_is_not_written_twice(chat: ChatFormat, end: str) -> None:
    transcript = held(chat, end)

    question = transcript.render("user", "be calm", answer=True)

    assert [*transcript.token_ids, *question.token_ids] == whole(chat)


def test_an_answer_that_a_client_gives_has_no_end_that_the_template_does_not_write(
    chat: ChatFormat,
) -> None:
    draft = match_messages(Transcript(chat, "test"), SAID)

    assert [token for turn in draft.turns for token in turn.token_ids] == whole(chat)


def test_a_choice_ends_as_the_model_ends_its_answers(chat: ChatFormat) -> None:
    assert chat.decode(chat.end_of_turn) == "<|start|>"


def test_what_a_user_says_is_not_taken_for_what_a_turn_begins_with() -> None:
    chat = ChatFormat(PlainTokenizer())
    transcript = Transcript(chat, "test")
    question = transcript.render("user", "abc", answer=True)
    transcript.extend([question, transcript.answer([5, 0], "stop")])

    assert transcript.render("user", "\0be", answer=True).rendered == "\0be"


@pytest.mark.parametrize("end", ["\n<|start|>", ""])
def test_nor_where_the_template_writes_white_space_behind_answers(end: str) -> None:
    spaced = made(UNENDED.replace("{% endfor", "\n{% endfor"))
    transcript = held(spaced, end)

    question = transcript.render("user", "be calm", answer=True)

    assert [*transcript.token_ids, *question.token_ids] == whole(spaced)


def test_a_user_may_say_it_where_the_template_writes_it_too(chat: ChatFormat) -> None:
    question = held(chat, "<|start|>").render("user", "<|start|>be", answer=True)

    assert question.rendered == "user: <|start|>be[A]"


@pytest.mark.parametrize("end", ["<|start|>", ""])
def test_a_turn_behind_such_an_answer_keeps_the_text_that_a_rewind_leaves(
    chat: ChatFormat, end: str
) -> None:
    transcript = held(chat, end)
    transcript.extend([transcript.render("user", "be calm", answer=False)])

    _, remains = cut_at_token(transcript, len(transcript.token_ids) - 1)

    assert remains[0].rendered.endswith(f"user: {remains[0].text}")
    assert remains[0].text == "be calm"[: len(remains[0].text)] != ""


def test_where_the_template_ends_answers_one_that_is_given_has_that_end() -> None:
    transcript = Transcript(chat_format("bytes", "chatml"), "test")

    assert transcript.given_answer("a cab").rendered == "a cab<|end|>"
