"""What a tokenizer begins texts with: it stands once, at the very start, if no template says it."""

import pytest
from call_forms import tokenizer_with
from small_tokenizers import BEGINS, CHATML, chat_format, starting, talk

from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.prefix_match import match_messages, match_text
from kvactors.core.conversation.rewind import cut_at_token
from kvactors.core.conversation.transcript import Transcript
from kvactors.core.testing.models import PlainTokenizer


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return starting()


def test_without_a_template_the_first_turn_begins_as_the_tokenizer_begins_texts(
    chat: ChatFormat,
) -> None:
    transcript = talk(chat, "Hello", "a cab", "be calm", system="Be brief.")

    first = transcript.turns[0]
    assert list(first.token_ids) == chat.tokenizer.encode(first.rendered)
    assert transcript.token_ids.count(BEGINS) == 1


def test_a_shared_system_prompt_begins_so_too(chat: ChatFormat) -> None:
    transcript = talk(chat, "Hello", system="Be brief. " * 9)

    beginning = transcript.chat.beginning(transcript.system_prompt)

    assert beginning[0] == BEGINS
    assert transcript.token_ids[: len(beginning)] == beginning


def test_a_template_says_itself_how_a_conversation_begins() -> None:
    transcript = talk(starting("{{ 'abc' }}" + CHATML), "Hello", system="Be brief.")

    assert transcript.token_ids[0] != BEGINS
    assert transcript.chat.beginning("Be brief.")[0] != BEGINS


@pytest.mark.parametrize("template", [None, CHATML])
@pytest.mark.parametrize("text", ["Hello world", "<|start|>Hello world"])
def test_a_text_at_the_very_start_has_it_once(template: str | None, text: str) -> None:
    chat = starting(template)

    draft = match_text(Transcript(chat, "test"), text)

    assert list(draft.turns[0].token_ids) == chat.tokenizer.encode("Hello world")
    assert chat.encode_whole(text) == chat.tokenizer.encode("Hello world")


def test_an_edited_text_keeps_it_with_the_tokens_that_match(chat: ChatFormat) -> None:
    transcript = Transcript(chat, "test")
    transcript.extend(match_text(transcript, "Hello world, hello again").turns)
    known = tuple(transcript.token_ids)

    draft = match_text(transcript, "Hello world, be calm", threshold=0)
    other = match_text(transcript, "be calm", threshold=0)

    head = draft.turns[0].token_ids
    assert (head, len(head) > 1) == (known[: len(head)], True)
    assert chat.decode(head + draft.turns[1].token_ids) == "<|start|>Hello world, be calm"
    assert list(other.turns[0].token_ids) == chat.tokenizer.encode("be calm")


def test_an_edited_question_keeps_it_with_the_tokens_that_match(chat: ChatFormat) -> None:
    transcript = talk(chat, "Hello world", "a cab")
    known = transcript.turns[0].token_ids

    draft = match_messages(transcript, [("user", "Hello be")], threshold=0)

    (turn,) = draft.turns
    assert turn.token_ids[:4] == known[:4]
    assert chat.decode(turn.token_ids) == f"<|start|>{turn.rendered}"


def test_a_rewind_to_it_alone_keeps_no_text(chat: ChatFormat) -> None:
    _, (remains,) = cut_at_token(talk(chat, "Hello", "a cab"), 1)

    assert (remains.token_ids, remains.rendered, remains.text) == ((BEGINS,), "", "")


@pytest.mark.parametrize("raw", [True, False])
def test_under_another_tokenizer_a_conversation_begins_as_that_one_does(
    chat: ChatFormat, raw: bool
) -> None:
    transcript = Transcript(ChatFormat(PlainTokenizer()), "plain")
    first = transcript.render("user", "Hello", answer=False)
    turns = match_text(transcript, "Hello").turns if raw else (first,)
    transcript.extend([*turns, transcript.render("user", "be", answer=False)])

    other = transcript.under(chat, "other")

    assert (other.token_ids[0], other.token_ids.count(BEGINS)) == (BEGINS, 1)


@pytest.mark.parametrize("algorithm", ["bytes", "unigram"])
def test_an_answer_begins_with_the_white_space_that_its_template_writes_there(
    algorithm: str,
) -> None:
    """And one that a client gives is remembered as if the model had said it."""
    for template in ("spaced", "broken line"):
        chat = chat_format(algorithm, template)
        given = Transcript(chat, "test").given_answer("a cab")
        said = Transcript(chat, "test").answer(given.token_ids, "stop")

        assert (given.text, given.rendered) == ("a cab", said.rendered)
        assert given.hidden == chat.decode(chat.written_end())


def test_white_space_that_the_model_said_itself_is_not_put_before_its_answer_again() -> None:
    chat = chat_format("bytes", "broken line")

    assert chat.encode_answer("\na cab") == chat.encode_answer("a cab")
    assert Transcript(chat, "test").given_answer("\na cab").rendered == "\na cab"


@pytest.mark.parametrize(
    "at_system",
    ["{{ raise_exception('no system') }}", ""],
    ids=["refuses", "leaves out"],
)
def test_a_system_prompt_that_the_template_does_not_write_stands_before_the_question(
    at_system: str,
) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}" + at_system + "{% else %}"
        "[{{ m.role }}]{{ m.content }}[end]{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    chat = ChatFormat(tokenizer_with(template, ["[end]"], ["[end]"]))

    said = chat.opening("user", "q", system="Be kind.", answer=True)
    assert said == "[user]Be kind.\n\nq[end][assistant]"
    assert chat.opening("user", "q", system="", answer=True) == "[user]q[end][assistant]"
    assert chat.opening("user", "q", system=None, answer=True) == "[user]q[end][assistant]"
    shared = chat.beginning("Be kind.")
    assert chat.decode(shared) == "[user]Be kind.\n\n"
